// Package loader feeds a training loop. A [Dataset] has samples, a [Batcher] reads them on several
// goroutines and makes batches, and a [Loader] uploads these while earlier batches are used:
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
//			// queue work on stream that uses batch.Field(0), whose first Bytes(0) bytes are valid
//		}
//	}
//
// # Whole batches
//
// A program whose data are not samples, such as a stream of text, calls a loader itself: with a
// [Source] that fills whole batches. A [Sampler] makes one that is given the numbers of a batch's
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
//			// queue work on stream that uses batch.Field(0), of which batch.Bytes(0) bytes are valid
//			err = batch.Release()
//		}
//	}
//
// # Order
//
// The host waits in Next alone: for data, and so that at most N steps are in flight. Everything
// else is the streams': the compute stream waits for the upload of a batch before it uses it, and
// the copy stream waits, before it overwrites a place of the ring, for what the compute stream was
// given until that batch's Release.
//
// # Memory
//
// All of it is taken by New: N+1 times the fields' capacities, in blocks of the cache and in pinned
// memory of the pool. Epochs take no more.
//
// # Errors
//
// The classes are those of package transfer: [transfer.ErrRange], [transfer.ErrInvalid],
// [transfer.ErrInFlight], [transfer.ErrReleased] and, after Close, [transfer.ErrClosed]. What a
// Source returns, or panics with, Next returns in the place of that batch; that of a [Dataset] has
// the number of the sample.
package loader
