package main

import (
	"bytes"
	"context"
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/metric"
	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/examples/mnist/internal/models"
	"github.com/cistern-ml/cistern/tensor"
)

// Every model trains: its loss changes in steps on pictures.
func TestEveryModelTrains(t *testing.T) {
	for _, model := range models.Names {
		epochs := 5
		if model != "vit" { // one of them goes on for longer under -short
			epochs = rounds(5, 2)
		}
		b := digits.Batches{Data: synthetic(10), Size: 5, Seed: 1}
		tr, err := newTrainer(t.Context(), options{device: "host", model: model, optimizer: models.Recipes[model].Optimizer, seed: 1}, b.Fields(), 1000, nil, &profiling{})
		require.NoError(t, err, model)
		var losses []float64
		for epoch := range epochs {
			loss, err := tr.epoch(t.Context(), b.Epoch(epoch), b.Count(), func() {})
			require.NoError(t, err, model)
			losses = append(losses, loss)
		}
		require.Less(t, losses[epochs-1], losses[0]-0.0125*float64(epochs-1), "%s: %v", model, losses)
		require.NoError(t, tr.close(), model)
	}
}

// With a learning rate of 1, a step of clipped gradients moves the parameters by the largest norm.
func TestClip(t *testing.T) {
	b := digits.Batches{Data: synthetic(10), Size: 10, Seed: 1}
	tr, err := newTrainer(t.Context(), options{device: "host", model: "mlp", optimizer: "sgd", lr: 1, seed: 1}, b.Fields(), 1, nil, &profiling{})
	require.NoError(t, err)
	tr.recipe.Clip = 1e-2
	weights := func() (all []float32) {
		for _, p := range tr.params {
			w, err := tensor.ToSlice[float32](t.Context(), p.Value(), nil)
			require.NoError(t, err)
			all = append(all, w...)
		}
		return all
	}
	before := weights()
	_, err = tr.epoch(t.Context(), b.Epoch(0), 1, func() {})
	require.NoError(t, err)
	moved := 0.0
	for i, w := range weights() {
		moved += float64(w-before[i]) * float64(w-before[i])
	}
	require.InEpsilon(t, 1e-2, math.Sqrt(moved), 1e-3)
	require.NoError(t, tr.close())
}

// trained runs the program and returns the bytes of the weights that it saves.
func trained(ctx context.Context, t *testing.T, status int, args ...string) []byte {
	t.Helper()
	var out, errs bytes.Buffer
	file := filepath.Join(t.TempDir(), "weights.safetensors")
	got := run(ctx, append(args, "-save", file), &out, &errs)
	require.Equal(t, status, got, errs.String())
	weights, err := os.ReadFile(file)
	require.NoError(t, err)
	return weights
}

// The weights of a training that was interrupted and continued are bit-identical to those of one
// that was not.
func TestResume(t *testing.T) {
	data, file := small(t), filepath.Join(t.TempDir(), "training")
	args := []string{"-data", data, "-batch", "10", "-epochs", "3", "-model", anyModel()}
	want := trained(t.Context(), t, 0, args...)
	args = append(args, "-resume", file)
	for _, lines := range []int{1, 2, 3} { // before the first step, and in or after an epoch
		ctx, cancel := context.WithCancel(t.Context())
		var errs bytes.Buffer
		require.Equal(t, 130, run(ctx, args, &stopAfter{lines: lines, stop: cancel}, &errs), errs.String())
	}
	require.Equal(t, want, trained(t.Context(), t, 0, args...))
	require.Equal(t, want, trained(t.Context(), t, 0, args...), "there is nothing left to do")
	var out, errs bytes.Buffer
	require.Zero(t, run(t.Context(), args, &out, &errs), errs.String())
	require.Contains(t, out.String(), "all 3 epochs are done   test accuracy")
	require.Equal(t, 1, run(t.Context(), append(args, "-batch", "5"), &out, &errs))
	require.Contains(t, errs.String(), "the training was begun with")
	require.Equal(t, 1, run(t.Context(), append(args, "-data", dataOf(t, 40, 10)), &out, &errs), "more pictures")
	require.Contains(t, errs.String(), "Steps:12}")
	require.NoError(t, os.WriteFile(file, []byte("something else"), 0o600))
	require.Equal(t, 1, run(t.Context(), args, &out, &errs))
}

// A training in bfloat16 learns as well as one in float32, captured too. Its checkpoint can't be
// continued in float32.
func TestBFloat16(t *testing.T) {
	data, file := someOfTheReal(t), filepath.Join(t.TempDir(), "r.json")
	kept := filepath.Join(t.TempDir(), "training")
	learn := func(args ...string) (r result) {
		var out, errs bytes.Buffer
		args = append([]string{"-data", data, "-batch", "40", "-epochs", "1", "-json", file}, args...)
		require.Zero(t, run(t.Context(), args, &out, &errs), errs.String())
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &r))
		return r
	}
	wide, half := learn(), learn("-bfloat16", "-resume", kept)
	require.InEpsilon(t, float64(wide.Loss[0]), float64(half.Loss[0]), 0x1p-7)
	require.NotEqual(t, wide.Loss, half.Loss)
	require.Equal(t, half.Loss, learn("-bfloat16", "-graph").Loss)
	var out, errs bytes.Buffer
	require.Equal(t, 1, run(t.Context(), []string{"-data", data, "-batch", "40", "-epochs", "1", "-resume", kept}, &out, &errs))
	require.Contains(t, errs.String(), "the training was begun with")
}

// Saved weights are loaded again, and the model predicts the digit in a picture.
func TestPredict(t *testing.T) {
	dir := t.TempDir()
	weights, picture, large := filepath.Join(dir, "w"), filepath.Join(dir, "p.png"), filepath.Join(dir, "l.png")
	require.NoError(t, os.WriteFile(weights, trained(t.Context(), t, 0, "-data", small(t), "-epochs", "2"), 0o600))
	for name, size := range map[string]int{picture: digits.Side, large: 2 * digits.Side} {
		var b bytes.Buffer
		require.NoError(t, png.Encode(&b, image.NewRGBA(image.Rect(0, 0, size, size))))
		require.NoError(t, os.WriteFile(name, b.Bytes(), 0o600))
	}
	var out, errs bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"-load", weights, "-predict", picture}, &out, &errs), errs.String())
	require.Contains(t, out.String(), picture+" is a 0\n", "all pictures of the training have this label")
	require.Contains(t, out.String(), "\n9 ")
	for args, want := range map[string]string{
		"-predict " + picture:                                        "with -load",
		"-predict " + large + " -load " + weights:                    "56 by 56 pixels: want 28 by 28",
		"-predict " + weights + " -load " + weights:                  "png",
		"-predict " + dir + "/none -load " + weights:                 "no such file",
		"-predict " + picture + " -load " + dir + "/none":            "no such file",
		"-predict " + picture + " -load " + weights + " -model cnn":  "missing 4 of the model's 8 names",
		"-load " + weights + " -resume " + weights + " -data " + dir: "want one of them",
	} {
		errs.Reset()
		require.Equal(t, 1, run(t.Context(), strings.Fields(args), &out, &errs), args)
		require.Contains(t, errs.String(), want, args)
	}
}

// A prediction with the weights of a diverged training is an error.
func TestPredictWithoutNumbers(t *testing.T) {
	dir := t.TempDir()
	weights, picture := filepath.Join(dir, "w"), filepath.Join(dir, "p.png")
	args := []string{"-data", small(t), "-epochs", "1", "-batch", "2", "-optimizer", "sgd", "-lr", "1e38"}
	require.NoError(t, os.WriteFile(weights, trained(t.Context(), t, 0, args...), 0o600))
	var b, out, errs bytes.Buffer
	require.NoError(t, png.Encode(&b, image.NewGray(image.Rect(0, 0, digits.Side, digits.Side))))
	require.NoError(t, os.WriteFile(picture, b.Bytes(), 0o600))
	require.Equal(t, 1, run(t.Context(), []string{"-load", weights, "-predict", picture}, &out, &errs))
	require.Contains(t, errs.String(), "answers NaN for digit 0")
}

// A picture in black on white is inverted.
func TestPictureIsWhiteOnBlack(t *testing.T) {
	m := image.NewGray(image.Rect(5, 7, 5+digits.Side, 7+digits.Side))
	m.SetGray(6, 9, color.Gray{Y: 255})
	x := intensities(m)
	require.InDelta(t, 1, x[2*digits.Side+1], 0)
	require.InDelta(t, 0, x[0], 0)
	for i := range m.Pix {
		m.Pix[i] = 255 - m.Pix[i]
	}
	require.Equal(t, x, intensities(m))
}

func TestConfusion(t *testing.T) {
	c := make(metric.Matrix, digits.Classes)
	for i := range c {
		c[i] = make([]int, digits.Classes)
	}
	c[3][3], c[3][8], c[8][8], c[1][1] = 1, 1, 1, 1
	var b bytes.Buffer
	printConfusion(&b, c)
	lines := strings.Split(b.String(), "\n")
	require.Contains(t, lines[5], "50.0 %", "one of two is an 8")
	require.Equal(t, []string{"3", "·", "·", "·", "1", "·", "·", "·", "·", "1", "·", "50.0", "%"}, strings.Fields(lines[5]))
	var out, errs bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"-data", small(t), "-epochs", "1", "-confusion"}, &out, &errs), errs.String())
	require.Contains(t, out.String(), "misclassified")
}
