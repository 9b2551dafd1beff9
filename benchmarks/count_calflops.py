"Child of cold_analyze.py: FLOPs and MACs of one forward by calflops. Arguments: preset file, sequence length, attention"
import json
import sys

import torch
from calflops import calculate_flops
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.for_model(**json.load(open(sys.argv[1], encoding="utf-8"))["config"])
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config, attn_implementation=sys.argv[3])
    ids = torch.zeros((1, int(sys.argv[2])), dtype=torch.long)
with torch.no_grad():  # outside of torch.device(...): inside it calflops reports 8 % more FLOPs
    flops, macs, _ = calculate_flops(model, kwargs={"input_ids": ids}, print_results=False, output_as_string=False)
print(json.dumps({"flops": flops, "macs": macs}))
