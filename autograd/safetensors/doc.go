// Package safetensors reads and writes files of named tensors in the safetensors format
// (https://huggingface.co/docs/safetensors): eight bytes with the length of a header, the header,
// which is JSON, and the elements of all tensors, one after the other. PyTorch programs write and
// read them with safetensors.torch.
//
//	f, err := safetensors.Open("model.safetensors")
//	defer f.Close()
//	weight, err := f.Load(ctx, env, "0.weight")
//
// Open checks a file: its header is within a limit, each name appears once, and the tensors fill
// the file without holes or overlaps, so that Open reports a truncated file. A tensor of a dtype
// that package tensor does not have is listed, and [File.Reader] reads its bytes. Loading it is an
// error that names it; the others can be loaded.
//
// Elements are copied between file and device through pinned memory, a piece at a time, so that
// only the header is held in host memory as a whole. This package does not convert dtypes;
// nn.LoadWeights and [tensor.Runtime.Convert] do.
//
// [Open] also opens the shards of a model, by their index model.safetensors.index.json.
package safetensors
