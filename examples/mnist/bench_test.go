package main

import (
	"cmp"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/examples/mnist/internal/models"
)

// BenchmarkFirstStep is the first training step of a process, of 128 digits: ms-open is the time of
// opening the device and making the model, ms-first that of the step with its kernels' loading, and
// ms-second that of the next one. Each model has to run in a process of its own, with
// -benchtime 1x, and CUDA_CACHE_DISABLE=1 for a driver that has no kernels.
func BenchmarkFirstStep(b *testing.B) {
	for _, model := range models.Names {
		b.Run(model, func(b *testing.B) {
			batches := digits.Batches{Data: synthetic(128), Size: 128, Seed: 1}
			o := options{device: cmp.Or(os.Getenv("CISTERN_TEST_DEVICE"), "host"), model: model, optimizer: models.Recipes[model].Optimizer, seed: 1}
			began := time.Now()
			report := func(unit string) {
				b.ReportMetric(float64(time.Since(began).Microseconds())/1e3, unit)
				began = time.Now()
			}
			tr, err := newTrainer(b.Context(), o, batches.Fields(), 1000, nil, &profiling{})
			require.NoError(b, err)
			require.NoError(b, tr.env.Synchronize(b.Context()))
			report("ms-open")
			for i, unit := range []string{"ms-first", "ms-second"} {
				_, err = tr.epoch(b.Context(), batches.Epoch(i), 1, func() {})
				require.NoError(b, err)
				report(unit)
			}
			require.NoError(b, tr.close())
		})
	}
}

// BenchmarkTraining is a training step of 128 digits as the program takes it with -graph: captured,
// with its loader, optimiser and schedule.
func BenchmarkTraining(b *testing.B) {
	for _, model := range models.Names {
		b.Run(model, func(b *testing.B) {
			o := options{device: cmp.Or(os.Getenv("CISTERN_TEST_DEVICE"), "host"), model: model, optimizer: models.Recipes[model].Optimizer, seed: 1, graph: true}
			batches := digits.Batches{Data: synthetic(100 * 128), Size: 128, Seed: 1}
			tr, err := newTrainer(b.Context(), o, batches.Fields(), 3+b.N, nil, &profiling{})
			require.NoError(b, err)
			defer func() { require.NoError(b, tr.close()) }()
			_, err = tr.epoch(b.Context(), batches.Epoch(0), 3, func() {})
			require.NoError(b, err)
			b.ResetTimer()
			for epoch, left := 1, b.N; left > 0; epoch, left = epoch+1, left-batches.Count() {
				_, err = tr.epoch(b.Context(), batches.Epoch(epoch), min(left, batches.Count()), func() {})
				require.NoError(b, err)
			}
			require.NoError(b, tr.env.Synchronize(b.Context()))
		})
	}
}
