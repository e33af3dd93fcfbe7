"""Writes the files of this folder with PyTorch 1.13: /usr/bin/python3 write.py

views.pt has tensors of every dtype, and views of one storage; expected.json has their numbers as
float64, row-major. nested_*.pt have a state dict under a key. evil.pt calls a function when Python
loads it; legacy.pt has the format before PyTorch 1.6, and script.pt is a TorchScript program.
"""
import collections
import json
import os

import torch

torch.manual_seed(7)
here = os.path.dirname(os.path.abspath(__file__))


def path(name):
    return os.path.join(here, name)


base = torch.randn(6, 5)
wide = torch.randn(2, 3, 4, dtype=torch.float64)
state = collections.OrderedDict()
state["base"] = base
state["rows"] = base[2:4]  # contiguous, from an offset
state["columns"] = base[:, 1:4]
state["transposed"] = base.t()
state["stepped"] = base[::2, ::3]
state["element"] = base[3, 2]  # a scalar
state["expanded"] = base[1].expand(3, 5)
state["empty"] = base[:0]
state["permuted"] = wide.permute(2, 0, 1)
state["unit"] = base[:, 2:3].t()  # (1, 6)
for name in "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8".split():
    numbers = torch.tensor([-3.0, 0.0, 1.0, 2.5, 100.0, 127.0])
    if name == "uint8":
        numbers = numbers.abs()
    state[name] = numbers.to(getattr(torch, name))
    state[name + ".every_second"] = state[name][1::2]
state["bool"] = torch.tensor([True, False, True])
state["parameter"] = torch.nn.Parameter(base[4])
torch.save(state, path("views.pt"))
with open(path("expected.json"), "w") as f:
    expected = {n: {"shape": list(t.shape), "numbers": t.detach().double().reshape(-1).tolist()} for n, t in state.items()}
    json.dump(expected, f, indent=1)
    f.write("\n")

layer = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
torch.save({"epoch": 3, "state_dict": layer.state_dict(), "lr": 0.5, "history": [1.5, None, (True, 2**40)]}, path("nested_state_dict.pt"))
torch.save({"model": {"state_dict": dict(layer.named_parameters())}}, path("nested_model.pt"))
torch.save(layer.state_dict(), path("legacy.pt"), _use_new_zipfile_serialization=False)
torch.save(layer.state_dict(), path("protocol4.pt"), pickle_protocol=4)
torch.save({"epoch": 3, "state": {}}, path("nothing.pt"))
torch.jit.script(torch.nn.Linear(1, 1)).save(path("script.pt"))


class Evil:
    def __reduce__(self):
        return os.system, ("echo this was run",)


torch.save({"weight": torch.ones(2), "evil": Evil()}, path("evil.pt"))
