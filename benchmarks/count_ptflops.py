"Child of counters.py: multiply-accumulates of one forward by ptflops. Arguments: preset file, sequence length, backend"
import json
import sys

import torch
from ptflops import get_model_complexity_info
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.for_model(**json.load(open(sys.argv[1], encoding="utf-8"))["config"])
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ids = torch.zeros((1, int(sys.argv[2])), dtype=torch.long)
with torch.no_grad():
    macs, _ = get_model_complexity_info(model, (1,), input_constructor=lambda _: {"input_ids": ids}, as_strings=False,
                                        print_per_layer_stat=False, backend=sys.argv[3])
print(json.dumps({"macs": macs}))
