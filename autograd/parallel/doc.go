// Package parallel trains one model on several ranks. Each rank has a copy of the model and
// computes on its part of every batch.
//
//	dp, err := parallel.New(ctx, comm, model, parallel.Config{Shard: parallel.ShardState})
//	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
//	… the training loop of one rank …
//	err = errors.Join(dp.Err(), dp.Close(), comm.Close())
//
// A [Parallel] replaces gradients with the mean of all ranks' gradients: in buckets, on a stream of
// its own, during the backward pass. With a [Sharding] each rank keeps only its part of the
// optimiser's state, or also of the gradients. If one rank fails, the others' step fails within the
// communicator's timeout.
//
// All ranks must make the same calls. Collectives are experimental beyond two GPUs.
package parallel
