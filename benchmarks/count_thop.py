"Child of counters.py: multiply-accumulates of one forward by thop. Arguments: preset file, sequence length"
import json
import sys

import thop
import torch
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.for_model(**json.load(open(sys.argv[1], encoding="utf-8"))["config"])
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ids = torch.zeros((1, int(sys.argv[2])), dtype=torch.long)
with torch.no_grad():
    macs, _ = thop.profile(model, inputs=(ids,), verbose=False)
print(json.dumps({"macs": int(macs)}))
