package loader_test

import (
	"context"
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// setUp opens what the examples need, and closeAll closes it. Errors are left out for brevity.
func setUp() (cache *memcache.Cache, pool *transfer.Pool, stream device.Stream, closeAll func()) {
	dev, _ := device.Open("host?capacity=64MiB")
	cache, _ = memcache.New(dev, memcache.Config{})
	pool, _ = transfer.New(dev, transfer.Config{})
	stream, _ = dev.NewStream(device.StreamOptions{})
	return cache, pool, stream, func() {
		pool.Close()
		stream.Close()
		cache.Close()
		dev.Close()
	}
}

// check ends an example that fails.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

func ExampleLoader() {
	ctx := context.Background()
	cache, pool, stream, closeAll := setUp()
	defer closeAll()

	l, err := loader.New(ctx, pool, loader.Config{
		Cache: cache, Compute: stream, Fields: []int64{3 * 4},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()

	data := []float32{1, 2, 3, 4, 5, 6, 7}
	err = l.Start(ctx, func(_ context.Context, fields [][]byte) error {
		if len(data) == 0 {
			return io.EOF
		}
		field, err := transfer.View[float32](fields[0])
		n := copy(field, data)
		data, fields[0] = data[n:], fields[0][:4*n]
		return err
	})
	for err == nil {
		var batch *loader.Minibatch
		if batch, err = l.Next(ctx); err != nil {
			break
		}
		// A real program launches kernels on stream here.
		fmt.Println("batch", batch.Index(), "has", batch.Bytes(0)/4, "numbers")
		err = batch.Release()
	}
	fmt.Println(err)
	// Output:
	// batch 0 has 3 numbers
	// batch 1 has 3 numbers
	// batch 2 has 1 numbers
	// EOF
}

func ExampleSampler() {
	ctx := context.Background()
	cache, pool, stream, closeAll := setUp()
	defer closeAll()

	words := []string{"apple", "berry", "chili", "dates", "elder"}
	s := loader.Sampler{Samples: len(words), Batch: 2, Fields: []int64{5}, Shuffle: true, Seed: 1}
	fmt.Println(s.Batches(), "batches of", s.Capacities(), "bytes")

	l, _ := loader.New(ctx, pool, loader.Config{Cache: cache, Compute: stream, Fields: s.Capacities()})
	defer l.Close()
	source, _ := s.Epoch(0, func(_ context.Context, samples []int, fields [][]byte) error {
		for k, i := range samples {
			copy(fields[0][5*k:], words[i])
		}
		return nil
	})
	l.Start(ctx, source)
	for {
		batch, err := l.Next(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		text := make([]byte, batch.Bytes(0))
		pool.Download(ctx, stream, text, batch.Field(0), 0)
		fmt.Printf("%s\n", text)
		batch.Release()
	}
	// Output:
	// 3 batches of [10] bytes
	// berryapple
	// dateselder
	// chili
	// EOF
}
