package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

// A model of two layers learns exclusive or.
func Example() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	in := nn.Init(ctx, env, nn.Seed(1))
	x := in.Tensor([]float64{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2)
	y := in.Labels([]int{0, 1, 1, 0}, 2)
	model := nn.Sequential{in.Linear(2, 16), nn.ReLU{}, in.Linear(16, 2)}
	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(0.05)}))
	for _, tape := range in.Steps(100) {
		optim.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y), adam)
	}
	check(in.Err())

	tape := autograd.NoGrad(ctx, env)
	logits := model.Forward(tape, tape.Input(x))
	check(tape.Err())
	best, err := env.ArgMax(ctx, logits.Value())
	check(err)
	answers, err := tensor.ToSlice[int32](ctx, best, nil)
	check(errors.Join(err, best.Release(), tape.Close(), in.Close(), env.Close()))
	fmt.Println(answers)
	// Output: [0 1 1 0]
}

// Each call of a step by hand, for a program that needs code between them.
func ExampleTape_Backward() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	in := nn.Init(ctx, env, nn.Dtype(tensor.Float64))
	w := in.Parameter([]float64{1, 2})
	sgd := nn.Own(in, optim.NewSGD(autograd.Parameters{{Name: "w", Parameter: w}}, optim.SGDConfig{LR: new(0.25)}))
	check(in.Err())

	tape := autograd.NewTape(ctx, env)
	loss, err := tape.Backward(tape.Sum(tape.Square(tape.Param(w))))
	check(err)
	value, err := tensor.Item[float64](ctx, loss)
	check(err)
	slope, err := tensor.ToSlice[float64](ctx, w.Grad(), nil)
	check(errors.Join(err, sgd.Step(ctx), sgd.ZeroGrad(ctx), tape.Close()))
	weights, err := tensor.ToSlice[float64](ctx, w.Value(), nil)
	check(errors.Join(err, in.Close(), env.Close()))
	fmt.Println(value, slope, weights)
	// Output: 5 [2 4] [0.5 1]
}

// Gradients of any expression: d/dx of sum(x² tanh(x)).
func ExampleTape_Leaf() {
	env, err := tensor.Open("host")
	check(err)
	defer env.Close()
	ctx, life := tensor.WithLifetime(context.Background())
	defer life.Close()

	value, err := tensor.FromSlice(ctx, env, []float64{0, 1, 2})
	check(err)
	tape := autograd.NewTape(ctx, env)
	defer tape.Close()
	x := tape.Leaf(value)
	_, err = tape.Backward(tape.Sum(tape.Mul(tape.Square(x), tape.Tanh(x))))
	check(err)
	slope, err := tensor.ToSlice[float64](ctx, x.Grad(), nil)
	check(err)
	fmt.Printf("%.4f\n", slope)
	// Output: [0.0000 1.9432 4.1387]
}

// swiGLU is a layer of the program's own. It makes parameters with an initialiser, and frees its
// intermediate values in a frame.
type swiGLU struct{ gate, up, down *nn.Linear }

func newSwiGLU(in *nn.Initializer, n, hidden int) swiGLU {
	return swiGLU{in.Linear(n, hidden), in.Linear(n, hidden), in.Linear(hidden, n)}
}

func (l swiGLU) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		gate := l.gate.Forward(t, x)
		swish := t.Mul(gate, t.Sigmoid(gate)) // gate is read twice: no matter, in a frame
		return l.down.Forward(t, t.Mul(swish, l.up.Forward(t, x)))
	})
}

func (l swiGLU) Parameters() autograd.Parameters {
	return nn.Sequential{l.gate, l.up, l.down}.Parameters()
}

// A layer of the program's own, in a model, with gradients and without.
func ExampleTape_Frame() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	in := nn.Init(ctx, env, nn.Seed(1))
	model := nn.Sequential{newSwiGLU(in, 4, 8), newSwiGLU(in, 4, 8)}
	x := in.Tensor([]float64{1, 2, 3, 4}, 1, 4)
	check(in.Err())
	fmt.Println(model.Parameters()[6].Name, model.Parameters().Elements())

	before := env.Cache().MemoryAllocated()
	tape := autograd.NoGrad(ctx, env)
	y := model.Forward(tape, tape.Input(x))
	check(tape.Err())
	fmt.Println(y.Shape(), env.Cache().MemoryAllocated()-before, "bytes: the result's block")
	check(errors.Join(tape.Close(), in.Close(), env.Close()))
	// Output:
	// 1.0.weight 232
	// (1, 4) 512 bytes: the result's block
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// cube is x³, an operation that the tape does not have.
func cube(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Func("cube", []*autograd.Variable{x}, func(c *autograd.Call) (*tensor.Tensor, error) {
		c.Save(c.Input(0))
		return c.Runtime().PowScalar(c.Context(), c.Input(0), 3)
	}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		d, err := c.Runtime().Square(c.Context(), c.Saved()[0])
		if err == nil {
			err = c.Runtime().MulScalarInPlace(c.Context(), d, 3)
		}
		if err == nil {
			err = c.Runtime().MulInPlace(c.Context(), d, g)
		}
		return c.Grads(d, err)
	})
}

// An operation of the program's own, with its gradient.
func ExampleTape_Func() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	in := nn.Init(ctx, env)
	x := in.Parameter([]float64{1, 2, 3})
	check(in.Err())

	tape := autograd.NewTape(ctx, env)
	_, err = tape.Backward(tape.Sum(cube(tape, tape.Param(x))))
	check(err)
	slope, err := tensor.ToSlice[float32](ctx, x.Grad(), nil)
	check(errors.Join(err, tape.Close(), in.Close(), env.Close()))
	fmt.Println(slope)
	// Output: [3 12 27]
}
