// Pictures trains a classifier of PNG pictures. The folder has a subfolder for each class.
//
//	go run ./examples/pictures FOLDER
//	go run ./examples/pictures          # digits of MNIST, written to a temporary folder
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"os"
	"path"
	"slices"

	"github.com/cistern-ml/cistern/autograd/metric"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	_ "github.com/cistern-ml/cistern/device/cuda"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// patience is the number of epochs without a better validation after which the training ends.
const patience = 3

// run trains on 7 of 10 pictures, keeps the weights that are best on the 8th, and returns the
// accuracy on the other two.
func run(ctx context.Context, device string, folder fs.FS, epochs int, out io.Writer) (accuracy float64, err error) {
	files, err := fs.Glob(folder, "*/*.png")
	var classes []string
	for _, f := range files {
		classes = append(classes, path.Dir(f))
	}
	classes = slices.Compact(classes)
	n := len(files)
	rand.New(rand.NewPCG(1, 1)).Shuffle(n, func(i, j int) { files[i], files[j] = files[j], files[i] })
	config := loader.BatcherConfig[picture]{Sampler: loader.Sampler{Batch: 64}}
	validation, err1 := loader.NewBatcher(pictures{folder, files[n*7/10 : n*8/10], classes}, config)
	test, err2 := loader.NewBatcher(pictures{folder, files[n*8/10:], classes}, config)
	config.Sampler.Shuffle, config.Transform = true, shift
	train, err3 := loader.NewBatcher(pictures{folder, files[:n*7/10], classes}, config)
	if err := cmp.Or(err, err1, err2, err3); err != nil {
		return 0, fmt.Errorf("%d PNG files in %d subfolders: %w", n, len(classes), err)
	}
	env, err := tensor.Open(device)
	if err != nil {
		return 0, err
	}
	in := nn.Init(ctx, env, nn.Seed(1))
	defer func() { err = errors.Join(err, in.Close(), env.Close()) }()
	l, err := loader.New(ctx, env.Pool(), loader.Config{Cache: env.Cache(), Compute: env.Stream(), Fields: train.Capacities()})
	if err != nil {
		return 0, err
	}
	nn.Own(in, l)
	model := nn.Sequential{
		in.Conv2d(3, 16, 3, nn.Padding(1)), nn.ReLU{}, nn.MaxPool2d{Kernel: []int{2}},
		in.Conv2d(16, 32, 3, nn.Padding(1)), nn.ReLU{}, nn.MaxPool2d{Kernel: []int{2}}, nn.Flatten{},
		in.Linear(32*side/4*side/4, 64), nn.ReLU{}, nn.Dropout{P: 0.2}, in.Linear(64, len(classes)),
	}
	adam := nn.Own(in, optim.NewAdamW(model.Parameters(), optim.AdamConfig{}))
	best, hits := nn.Own(in, nn.NewStateCopy(ctx, model)), nn.Own(in, metric.NewMean(ctx, env))
	// pass returns the accuracy in an epoch, and trains if training is true.
	pass := func(data *loader.Batcher[picture], epoch int, training bool) float64 {
		for batch, err := range data.From(ctx, l, loader.Position{Epoch: epoch}) {
			in.Fail(err)
			for _, tape := range in.Steps(1) {
				rows := int(batch.Bytes(1) / 4)
				x, err1 := env.FromBlock(batch.Field(0), tensor.Float32, rows, 3, side, side)
				y, err2 := env.FromBlock(batch.Field(1), tensor.Int32, rows)
				tape.Fail(errors.Join(err1, err2))
				tape.SetTraining(training)
				logits := model.Forward(tape, tape.Input(x))
				hits.AddHits(tape, logits, y)
				if training {
					optim.Minimize(tape, tape.CrossEntropy(logits, y), adam)
				}
				tape.Fail(errors.Join(x.Release(), y.Release()))
			}
		}
		mean, err := hits.Value(ctx)
		in.Fail(errors.Join(err, hits.Reset(ctx)))
		return mean
	}
	for epoch, top, bad := 0, 0.0, 0; epoch < epochs && bad < patience && in.Err() == nil; epoch++ {
		trained, checked := pass(train, epoch, true), pass(validation, 0, false)
		fmt.Fprintf(out, "epoch %d: training accuracy %.3f, validation accuracy %.3f\n", epoch+1, trained, checked)
		if bad++; checked > top {
			top, bad = checked, 0
			in.Fail(best.Save(ctx))
		}
	}
	in.Fail(best.Restore(ctx))
	accuracy = pass(test, 0, false)
	fmt.Fprintf(out, "accuracy on %d held-out pictures: %.3f\n", test.Samples, accuracy)
	return accuracy, in.Err()
}

func main() {
	device := flag.String("device", "host", "`name` of the device")
	flag.Parse()
	folder, err := flag.Arg(0), error(nil)
	if folder == "" {
		folder, err = writeDigits(5000)
	}
	if err == nil {
		_, err = run(context.Background(), *device, os.DirFS(folder), 20, os.Stdout)
	}
	if flag.Arg(0) == "" {
		err = errors.Join(err, os.RemoveAll(folder))
	}
	if err != nil {
		log.Fatal(err)
	}
}
