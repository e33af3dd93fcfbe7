package transfer_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
)

// A batch uploads, computes and reads back with one completion. On the host device its kernel is a
// Go function; on a GPU it is a kernel of a module.
func ExampleBatch() {
	ctx := context.Background()
	cache, pool, stream, closeAll := setUp()
	defer closeAll()

	block, _ := cache.Alloc(ctx, 4, stream)
	defer block.Free()
	mem, _ := stream.Device().(device.HostVisible).Bytes(block.Ptr(), 4)
	double := &device.Launch{
		Name: "double", Reads: []device.Range{block.Range(0, 4)}, Writes: []device.Range{block.Range(0, 4)},
		Func: func() {
			for i := range mem {
				mem[i] *= 2
			}
		},
	}

	batch := pool.NewBatch()
	defer batch.Close()
	batch.UploadPadded(ctx, block, 0, []byte{1, 2, 3}, 4)
	batch.Launch(double, block)
	first, _ := batch.Output(ctx, block, 0, 2)
	last, _ := batch.Output(ctx, block, 2, 2)
	batch.Submit(ctx, stream)

	var out []byte
	for _, i := range []int{last, first} {
		err := batch.CollectOne(ctx, i, &out)
		fmt.Println("output", i, "is", out, err)
	}
	// Output:
	// output 1 is [6 0] <nil>
	// output 0 is [2 4] <nil>
}

// A registered slice is copied from and to without staging.
func ExamplePool_Register() {
	ctx := context.Background()
	cache, pool, stream, closeAll := setUp()
	defer closeAll()

	block, _ := cache.Alloc(ctx, 8, stream)
	defer block.Free()
	table := []byte("a table that stays")
	buf, _ := pool.Register(ctx, table)
	pool.H2D(ctx, stream, block, 0, buf, 2, 5)
	pool.D2H(ctx, stream, buf, 13, block, 0, 5)
	fmt.Println("registered:", pool.Stats().Registered.Current, "bytes")

	err := buf.Release() // waits for the copies
	fmt.Printf("%s %v\n", table, err)
	// Output:
	// registered: 18 bytes
	// a table that table <nil>
}

// A kernel uses a buffer in place, and the pool orders it like a copy.
func ExamplePool_Launch() {
	ctx := context.Background()
	_, pool, stream, closeAll := setUp()
	defer closeAll()

	buf, _ := pool.Get(ctx, 4)
	copy(buf.Bytes(), []byte{1, 2, 3, 4})
	mem, at := buf.Bytes(), must(buf.Range(0, 4))
	sum := &device.Launch{
		Name: "prefix sum", Reads: []device.Range{at}, Writes: []device.Range{at},
		Func: func() {
			for i := range mem[1:] {
				mem[i+1] += mem[i]
			}
		},
	}
	done, err := pool.Launch(ctx, stream, sum, transfer.BufferUse{Buffer: buf, Writes: true})
	fmt.Println(err, done.Wait(ctx))
	fmt.Println(buf.Bytes(), buf.Release())
	// Output:
	// <nil> <nil>
	// [1 3 6 10] <nil>
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Each side of a copy across devices names a pool, a stream and a block of its own device.
func ExampleCopyPeer() {
	ctx := context.Background()
	cache, pool, stream, closeAll := setUp()
	defer closeAll()
	cache2, pool2, stream2, closeAll2 := setUp()
	defer closeAll2()

	src, _ := cache.Alloc(ctx, 5, stream)
	dst, _ := cache2.Alloc(ctx, 5, stream2)
	pool.Upload(ctx, stream, src, 0, []byte("hello"))
	_, err := transfer.CopyPeer(ctx, transfer.Side{Pool: pool2, Stream: stream2, Block: dst},
		transfer.Side{Pool: pool, Stream: stream, Block: src}, 5)
	fmt.Println(err, src.Free()) // at once: stream waits for the copy

	text := make([]byte, 5)
	err = pool2.Download(ctx, stream2, text, dst, 0)
	fmt.Printf("%s %v\n", text, errors.Join(err, dst.Free()))
	// Output:
	// <nil> <nil>
	// hello <nil>
}

// Download waits: when it returns without an error, the data is in the slice.
func ExamplePool_Download() {
	ctx := context.Background()
	cache, pool, stream, closeAll := setUp()
	defer closeAll()

	block, _ := cache.Alloc(ctx, 8, stream)
	defer block.Free()
	pool.Upload(ctx, stream, block, 0, transfer.Bytes([]float32{1.5, -2}))
	numbers := make([]float32, 2)
	err := pool.Download(ctx, stream, transfer.Bytes(numbers), block, 0)
	fmt.Println(numbers, err)
	// Output:
	// [1.5 -2] <nil>
}
