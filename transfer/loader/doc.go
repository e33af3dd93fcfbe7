// Package loader feeds a training loop: a [Loader] calls a [Source] ahead of the loop, and uploads
// what it gives while earlier batches are used. A [Sampler] shuffles a data set and cuts it into
// such batches.
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
// Source returns, or panics with, Next returns in the place of that batch.
package loader
