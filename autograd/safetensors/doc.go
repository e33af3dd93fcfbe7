// Package safetensors reads and writes files of named tensors in the safetensors format
// (https://huggingface.co/docs/safetensors): eight bytes with the length of a header, the header,
// which is JSON, and the elements of all tensors, one behind the other. PyTorch programs write and
// read them with safetensors.torch.
//
//	f, err := safetensors.Open("model.safetensors")
//	defer f.Close()
//	weight, err := f.Load(ctx, env, "0.weight")
//
// A file is checked when it is opened: its header is within a limit, every name stands once, and
// the tensors fill the file without holes or overlaps, so that a file that was cut off is an error
// at once. A tensor of a dtype that package tensor does not have is listed, and [File.Reader] reads
// its bytes. To load it is an error that names it, and the others can be loaded.
//
// Elements go between file and device through pinned memory, a piece at a time; no more than the
// header is ever held in memory. Dtypes stay: nn.LoadWeights converts, and so does
// [tensor.Runtime.Convert].
//
// [Open] also opens the shards of a model, by their index model.safetensors.index.json.
package safetensors
