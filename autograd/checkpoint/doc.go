// Package checkpoint saves and loads everything that is needed to continue a training, as one file.
//
//	var at struct{ Step int }
//	c := checkpoint.Checkpoint{Model: model, Optimizer: adam, Init: in, State: &at}
//	err := c.Load(ctx, path) // os.ErrNotExist: a new training
//	… train …
//	err = c.Save(ctx, path)
//
// A loaded training continues bit for bit as if it had never stopped. Save replaces an older file
// only when the new one is complete and on the disk, so that a killed program finds one of the two.
// The file is in the safetensors format, which other programs can read.
//
// Several ranks save one file, which rank 0 writes ([Ranks]). Any number of ranks can continue from
// it.
package checkpoint
