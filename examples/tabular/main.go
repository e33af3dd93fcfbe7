// Tabular learns the last column of a CSV file of numbers with a header from the other columns: by
// least squares, and by a small network that learns the residuals.
//
//	go run ./examples/tabular FILE
//	go run ./examples/tabular        # generated rows: Friedman's first function, with noise
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	_ "github.com/cistern-ml/cistern/device/cuda"
	"github.com/cistern-ml/cistern/tensor"
)

const (
	batch = 32
	// patience is the number of epochs without a better validation after which the training ends.
	patience = 20
)

// train trains a network on four fifths of the rows, until its error on the first fifth gets no
// smaller. It returns the error (RMSE) on test.
func train(ctx context.Context, env *tensor.Runtime, rows, test [][]float64) (rmse float64, err error) {
	in := nn.Init(ctx, env, nn.Seed(1))
	defer func() { err = errors.Join(err, in.Close()) }()
	columns := len(rows[0]) - 1
	last := in.Linear(64, 1)
	in.Reset(last.Weight, nn.InitConstant(0)) // so that it begins with least squares
	in.Reset(last.Bias, nn.InitConstant(0))
	model := nn.Sequential{in.Linear(columns, 64), nn.SiLU{}, in.Linear(64, 64), nn.SiLU{}, last}
	adam := nn.Own(in, optim.NewAdamW(model.Parameters(), optim.AdamConfig{}))
	best := nn.Own(in, nn.NewStateCopy(ctx, model))
	loss := func(t *autograd.Tape, rows [][]float64) *autograd.Variable {
		x, y := split(rows)
		return t.MSELoss(model.Forward(t, t.Input(in.Tensor(x, len(rows), columns))), in.Tensor(y, len(rows), 1))
	}
	validate := func(rows [][]float64) (mse float64) {
		for _, tape := range in.Steps(1) {
			mse = loss(tape, rows).Item()
		}
		return mse
	}
	validation, rows := rows[:len(rows)/5], slices.Clone(rows[len(rows)/5:])
	for least, bad := validate(validation), 0; bad < patience && in.Err() == nil; {
		in.Rand().Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		for part := range slices.Chunk(rows, batch) {
			for _, tape := range in.Steps(1) {
				optim.Minimize(tape, loss(tape, part), adam)
			}
		}
		mse := validate(validation)
		if bad++; mse < least {
			least, bad = mse, 0
			in.Fail(best.Save(ctx))
		}
	}
	in.Fail(best.Restore(ctx))
	return math.Sqrt(validate(test)), in.Err()
}

// run holds out each fifth of the rows in turn, and returns the errors (RMSE) on all of them.
func run(ctx context.Context, device string, rows [][]float64, out io.Writer) (network, linear float64, err error) {
	env, err := tensor.Open(device)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	for k := range folds {
		rows, test := fold(rows, k)
		scale := standardise(rows, test)
		l := leastSquares(rows, test) * scale
		scale *= standardise(rows, test)
		n, err := train(ctx, env, rows, test)
		if err != nil {
			return 0, 0, err
		}
		n *= scale
		fmt.Fprintf(out, "fold %d: RMSE of the network %.4g, of least squares %.4g\n", k+1, n, l)
		network, linear = network+n*n/folds, linear+l*l/folds
	}
	network, linear = math.Sqrt(network), math.Sqrt(linear)
	fmt.Fprintf(out, "all folds: RMSE of the network %.4g, of least squares %.4g\n", network, linear)
	return network, linear, nil
}

func main() {
	device := flag.String("device", "host", "`name` of the device")
	flag.Parse()
	rows, err := friedman(2000), error(nil)
	if path := flag.Arg(0); path != "" {
		rows, err = read(path)
	}
	if err == nil {
		_, _, err = run(context.Background(), *device, rows, os.Stdout)
	}
	if err != nil {
		log.Fatal(err)
	}
}
