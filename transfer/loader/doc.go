// Package loader feeds a training loop. A [Batcher] reads the samples of a [Dataset] on several
// goroutines and makes batches of them, and a [Loader] uploads these while earlier batches are
// used:
//
//	digits, err := loader.NewBatcher(dataset, loader.BatcherConfig[digit]{
//		Sampler: loader.Sampler{Batch: 128, Shuffle: true, Seed: 1}, Workers: 8,
//	})
//	l, err := loader.New(ctx, pool, loader.Config{
//		Cache: cache, Compute: stream, Fields: digits.Capacities(),
//	})
//	defer l.Close()
//	for epoch := range epochs {
//		for batch, err := range digits.From(ctx, l, loader.Position{Epoch: epoch}) {
//			// queue work on stream that uses the first batch.Bytes(0) bytes of batch.Field(0)
//		}
//	}
//
// # Whole batches
//
// If the data are not samples, such as a stream of text, pass the loader a [Source] that fills
// whole batches. [Sampler.Epoch] makes a Source of a function that gets the indices of a batch's
// samples.
//
//	l, err := loader.New(ctx, pool, loader.Config{
//		Cache: cache, Compute: stream, Fields: []int64{imageBytes, labelBytes},
//	})
//	defer l.Close()
//	for range epochs {
//		err := l.Start(ctx, source)
//		for {
//			batch, err := l.Next(ctx)
//			if err == io.EOF {
//				break
//			}
//			// queue work on stream that uses the first batch.Bytes(0) bytes of batch.Field(0)
//			err = batch.Release()
//		}
//	}
//
// # Order
//
// The host waits only in Next: for data, and so that at most N steps are in flight
// ([Config].Ahead). All other waits are on the streams. The compute stream waits for a batch's
// upload before it uses the batch. Before the copy stream overwrites a slot of the ring, it waits
// for the work that was queued on the compute stream until that batch's Release.
//
// # Memory
//
// New allocates all memory: N+1 times the fields' capacities, in blocks of the cache and in pinned
// memory of the pool. Epochs allocate no more.
//
// # Errors
//
// The classes are those of package transfer: [transfer.ErrRange], [transfer.ErrInvalid],
// [transfer.ErrInFlight], [transfer.ErrReleased] and, after Close, [transfer.ErrClosed]. Next
// returns the error or panic of a Source instead of that batch; an error of a [Dataset] includes
// the index of the sample.
package loader
