package tensor_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/transfer"
)

// One call creates a device, a cache and the other parts of a runtime.
func ExampleOpen() {
	ctx := context.Background()
	env, err := tensor.Open("host?capacity=64MiB", tensor.CacheConfig(memcache.Config{MemoryLimit: 32 << 20}))
	must(err)
	x, err := tensor.FromSlice(ctx, env, []float32{1, 2, 3})
	must(err)
	y, err := env.Square(ctx, x)
	must(err)
	values, err := tensor.ToSlice[float32](ctx, y, nil)
	must(err)
	fmt.Println(y, values, env.Cache().MemoryAllocated(), "bytes")
	must(errors.Join(x.Release(), y.Release(), env.Close()))
	// Output: float32 (3) on host [1 4 9] 1024 bytes
}

// A runtime can use a cache, a pool and a stream that the program uses for other work, too.
func ExampleNewRuntime() {
	dev, err := device.Open("host")
	must(err)
	cache, err := memcache.New(dev, memcache.Config{})
	must(err)
	pool, err := transfer.New(dev, transfer.Config{})
	must(err)
	stream, err := dev.NewStream(device.StreamOptions{})
	must(err)
	rt, err := tensor.NewRuntime(cache, pool, stream)
	must(err)
	x, err := rt.Full(context.Background(), 0.5, tensor.Float64, 2, 3)
	must(err)
	fmt.Println(x)
	must(errors.Join(x.Release(), rt.Close(), pool.Close(), stream.Close(), cache.Close(), dev.Close()))
	// Output: float64 (2, 3) on host
}

// The second factor is read as its transpose, without a copy of it.
func ExampleRuntime_MatMul() {
	env, err := tensor.Open("host")
	must(err)
	ctx, life := tensor.WithLifetime(context.Background())
	x, err := tensor.FromSlice(ctx, env, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
	must(err)
	w, err := tensor.FromSlice(ctx, env, []float32{1, 0, 1, 0, 1, 0}, 2, 3)
	must(err)
	y, err := env.MatMul(ctx, x, w, tensor.TransB)
	must(err)
	values, err := tensor.ToSlice[float32](ctx, y, nil)
	must(err)
	fmt.Println(y.Shape(), values)
	must(errors.Join(life.Close(), env.Close()))
	// Output: (2, 2) [4 2 10 5]
}

// A lifetime releases everything that was made with its context, except tensors that are kept.
func ExampleWithLifetime() {
	env, err := tensor.Open("host")
	must(err)
	norm := func(ctx context.Context, x *tensor.Tensor) *tensor.Tensor {
		ctx, life := tensor.WithLifetime(ctx)
		defer life.Close()
		square, err := env.Square(ctx, x)
		must(err)
		sum, err := env.Sum(ctx, square)
		must(err)
		root, err := env.Sqrt(ctx, sum)
		must(err)
		life.Keep(root)
		return root
	}
	ctx := context.Background()
	x, err := tensor.FromSlice(ctx, env, []float64{3, 4})
	must(err)
	y := norm(ctx, x)
	value, err := tensor.Item[float64](ctx, y)
	must(err)
	live, _ := env.Live()
	fmt.Println(value, live, "tensors")
	must(errors.Join(x.Release(), y.Release(), env.Close()))
	// Output: 5 2 tensors
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
