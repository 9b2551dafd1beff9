"Child of cold_analyze.py: FLOPs of one forward by torch's FlopCounterMode. Arguments: preset file, sequence length"
import json
import sys

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.for_model(**json.load(open(sys.argv[1], encoding="utf-8"))["config"])
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    ids = torch.zeros((1, int(sys.argv[2])), dtype=torch.long)
with torch.no_grad(), FlopCounterMode(display=False) as counter:
    model(ids)
print(json.dumps({"flops": counter.get_total_flops()}))
