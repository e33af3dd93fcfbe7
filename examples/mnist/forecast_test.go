package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/forecasttest"
	"github.com/cistern-ml/cistern/tensor"
)

// digits is a model of the example with pictures of zeros.
func digits(name string) forecasttest.Task {
	return forecasttest.Task{
		Model: func(in *nn.Initializer, h forecasttest.How, off *tensor.Offloader) nn.Layer {
			return h.Wrapped(recipes[name].model(in), off)
		},
		Data: func(in *nn.Initializer, batch int) (x, y *tensor.Tensor) {
			return in.Zeros(batch, pixels).Value(), in.Labels(make([]int, batch), classes)
		},
	}
}

func TestModelsAreForeseen(t *testing.T) {
	batches := []int{1, 17, 32}
	if testing.Short() {
		batches = batches[1:2]
	}
	for _, name := range models {
		for _, h := range forecasttest.Ways {
			for _, batch := range batches {
				forecasttest.RequireForeseen(t, digits(name), h, batch, fmt.Sprintf("%s, %s, batch %d", name, h.Name, batch))
			}
		}
	}
}

// TestAllPicturesAreForeseen: a step of the CNN on all pictures at once.
func TestAllPicturesAreForeseen(t *testing.T) {
	forecasttest.SkipBits32(t)
	began := time.Now()
	f, err := forecast.Step(context.Background(), "dry:cuda?gpu=H200", digits("cnn").Program(forecasttest.Plain, maxBatch))
	require.NoError(t, err)
	t.Logf("%v, %d bytes reserved, fits: %v", time.Since(began), f.ReservedPeak, f.Fits)
	require.Greater(t, f.AllocatedPeak, int64(maxBatch)*32*26*26*4, "the first convolution's result")
	require.Less(t, time.Since(began), time.Minute)
}
