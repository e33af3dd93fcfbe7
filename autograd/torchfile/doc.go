// Package torchfile reads the tensors of a state dict that PyTorch has written with torch.save:
// files named .pt, .pth or .bin, in the zip format of PyTorch 1.6 and later.
//
//	f, err := torchfile.Open("pytorch_model.bin")
//	defer f.Close()
//	report, err := nn.LoadWeights(ctx, model, f)
//
// Such a file is a pickle, which is a program that may call any class of Python. This package calls
// none: the pickle may name the classes of a state dict (collections.OrderedDict, tensors,
// parameters and their storages), and any other class is an error that names it. The pickle must
// have protocol 2, which torch.save writes by default.
//
// The state dict is the file's value, or is in it under "state_dict" or "model", as training
// scripts write it. Its values that are not tensors are left out. Tensors may be views of each
// other's storage, with any strides. A tensor that is not contiguous, or was written on a
// big-endian machine, is read into host memory; all others are streamed. A file takes at most 512
// MiB of memory beside its tensors, because sizes and offsets are checked before they are used.
package torchfile
