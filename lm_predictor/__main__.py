"The command line as `python -m lm_predictor`"
import sys

from lm_predictor.app.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
