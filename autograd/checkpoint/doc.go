// Package checkpoint saves and loads everything that a training goes on from, as one file.
//
//	var at struct{ Step int }
//	c := checkpoint.Checkpoint{Model: model, Optimizer: adam, Init: in, State: &at}
//	err := c.Load(ctx, path) // os.ErrNotExist: a training that begins
//	… train …
//	err = c.Save(ctx, path)
//
// A training that is loaded goes on bit for bit as if it had never stopped. Save replaces an older
// file when the new one is whole and on the disk, so that a killed program finds one of the two.
// The file is safetensors, which other programs read.
//
// Several ranks save one file, which rank 0 writes ([Ranks]); any number of ranks go on from it.
package checkpoint
