"Child of counters.py: FLOPs of one forward by fvcore. Arguments: preset file, sequence length"
import json
import logging
import sys

import torch
from fvcore.nn import FlopCountAnalysis
from transformers import AutoConfig, AutoModelForCausalLM

logging.disable(logging.WARNING)
config = AutoConfig.for_model(**json.load(open(sys.argv[1], encoding="utf-8"))["config"])
config.use_cache = False  # fvcore traces with torch.jit, which takes tensors only
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ids = torch.zeros((1, int(sys.argv[2])), dtype=torch.long)


class Logits(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids, use_cache=False, return_dict=False)[0]


with torch.no_grad():
    counted = FlopCountAnalysis(Logits(), ids).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    flops = counted.total()
print(json.dumps({"flops": int(flops), "left_out": dict(counted.unsupported_ops())}))
