// Package parallel trains one model on several ranks, each of which computes on its part of every
// batch.
//
//	dp, err := parallel.New(ctx, comm, model, parallel.Config{Shard: parallel.ShardState})
//	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
//	… the training loop of one rank …
//	err = errors.Join(dp.Err(), dp.Close(), comm.Close())
//
// A [Parallel] makes gradients the mean of all ranks', in buckets, on a stream of its own, while
// the backward pass goes on. With a [Sharding] each rank keeps its part of the optimiser's state
// alone, or of the gradients too. A failure of one rank ends the others' step within the
// communicator's timeout.
//
// All ranks make the same calls. Collectives are experimental beyond two GPUs.
package parallel
