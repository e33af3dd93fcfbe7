//go:build amd64 || arm64

package gorgonia_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/gorgonia"
)

// Tensors of gorgonia.org/tensor in memory that only the device can access. The device "cuda:0" is
// opened in the same way.
func ExampleDeviceEngine() {
	ctx := context.Background()
	env, err := tensor.Open("host?accessible=false")
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	engine, err := gorgonia.NewDeviceEngine(env)
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	lifetime := engine.NewLifetime()
	defer lifetime.Close()

	x, err := engine.FromHost(ctx, gtensor.New(gtensor.WithShape(2, 3), gtensor.WithBacking([]float32{1, 2, 3, 4, 5, 6})))
	if err != nil {
		log.Fatal(err)
	}
	y, err := gtensor.Mul(x, float32(2))
	if err != nil {
		log.Fatal(err)
	}
	sums, err := gtensor.Sum(y, 1)
	if err != nil {
		log.Fatal(err)
	}
	// Printing sums itself would crash the program.
	result, err := engine.ToHost(ctx, sums.(*gtensor.Dense))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result)

	// The same memory as a tensor of package tensor.
	shared, err := engine.ToTensor(ctx, x)
	if err != nil {
		log.Fatal(err)
	}
	defer shared.Release()
	product, err := env.MatMul(ctx, shared, shared, tensor.TransB)
	if err != nil {
		log.Fatal(err)
	}
	defer product.Release()
	numbers, err := tensor.ToSlice[float32](ctx, product, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(numbers)

	_, err = x.Apply(func(f float32) float32 { return f })
	fmt.Println("functions of Go:", errors.Is(err, gorgonia.ErrUnsupported))
	// Output:
	// [12  30]
	// [14 32 32 77]
	// functions of Go: true
}
