"The command line as its user meets it: numbers, phases, layouts, mistakes. Each test failed before its finding was mended."
import pytest

from lm_predictor.app.cli.main import main

TYPED = {  # what is typed for a number -> the nearest right answer
    "1,2,4,8": "one number at a time, write 1", "1,000": "write 1000", "1_000": "write 1000", "+8": "write 8", "1e3": "write 1000",
    "\u0661\u0662\u0663": "write 123", "\uff18": "write 8", "1.5": "write 1 or 2", "": "write a number such as 8",
    "eight": "write a number such as 8", "9" * 40: "write fewer digits",
}
OPTIONS = {
    "analyze gpt2": ("batch-size", "seq-len", "cache-len", "w-bits", "a-bits", "kv-bits"), "explore": ("port",),
    "verify gpt2": ("jobs",), "agent LlamaMLP": ("jobs", "max-turns", "max-tokens", "max-repairs"),
}


@pytest.mark.parametrize("typed", TYPED, ids=lambda t: ascii(t)[:12])
def test_number(typed, capsys):
    "Every option that takes a whole number refuses what is not its digits, and says what to write"
    for command, options in OPTIONS.items():
        for option in options:
            assert main([*command.split(), f"--{option}", typed]) in (1, 2)
            out, err = capsys.readouterr()
            got = "nothing" if not typed else f"'{typed[:37]}..." if len(typed) > 39 else repr(typed)
            said = f"argument --{option}: takes a whole number in the digits 0 to 9, got {got}"
            assert out == "" and said in err and TYPED[typed] in err and "Traceback" not in err


@pytest.mark.parametrize("typed", ["nan", "inf", "1e3", "6,5", "1_0", "+2", "", "\u0663"])
def test_fraction(typed, capsys):
    assert main(["analyze", "mixtral-8x7b", "--active-experts", typed]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == "" and "argument --active-experts: takes a number in the digits 0 to 9 with a point, got " in err


@pytest.mark.parametrize("typed", ["1_000", "1,000", "+8", "1e3", "\u0661"])
def test_set(typed, capsys):
    assert main(["expand", "LlamaMLP", "--set", f"seq_len={typed}"]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == "" and f"--set seq_len takes a whole number in the digits 0 to 9, got {typed!r}; write " in err
