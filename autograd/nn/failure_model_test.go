package nn_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/tensor"
)

// ofParameter is a trial of a function that makes a parameter.
func ofParameter(make func(in maker) *autograd.Parameter) func(testing.TB, *failing) failtest.Trial {
	return makes(make, func(m *failing, p *autograd.Parameter) any { return m.Numbers(p.Value()) })
}

// batchNormed is a trial of a batch norm. After a failure each of its running statistics is either
// unchanged or as after a success, and all else is unchanged.
func batchNormed(t testing.TB, m *failing) failtest.Trial {
	trial := func() failtest.Trial {
		return applies(func(in maker) *nn.BatchNorm { return in.BatchNorm(2) },
			func(t onTape, l *nn.BatchNorm, x variable) variable { return l.Forward(t, x) }, 2, 2, 3)(t, m)
	}
	twin := trial()
	require.NoError(t, twin.Do(m.Ctx))
	want := twin.See().([]any)
	require.NoError(t, twin.Undo())
	of := trial()
	of.Left = func(before any, err error) error {
		for i, now := range of.See().([]any) {
			statistic := i >= len(want)-3
			if was := before.([]any)[i]; !reflect.DeepEqual(now, was) && !(statistic && reflect.DeepEqual(now, want[i])) {
				return fmt.Errorf("%v, want %v, or %v if it is a statistic: %w", now, was, want[i], err)
			}
		}
		return nil
	}
	return of
}

// Reasons why a failure is not undone.
var (
	lost   = map[string]string{"Free": "memory that the driver does not take back is the cache's until it is closed"}
	queued = map[string]string{"Record": "the copy is queued, and nothing says when it ends"}
	moved  = map[failtest.Kind]string{
		failtest.Failed: "running statistics move in the forward pass", failtest.OutOfMemory: "as failed", failtest.Ended: "as failed",
	}
)

// modelRows are the other calls of models and initialisers.
var modelRows = []failtest.Row[*failing]{
	{Of: "Initializer.Uniform", Make: ofParameter(func(in maker) *autograd.Parameter { return in.Uniform(-1, 1, 2, 3) })},
	{Of: "Initializer.Normal", Make: ofParameter(func(in maker) *autograd.Parameter { return in.Normal(0, 1, 2, 3) })},
	{Of: "Initializer.Zeros", Make: ofParameter(func(in maker) *autograd.Parameter { return in.Zeros(3) })},
	{Of: "Initializer.Ones", Make: ofParameter(func(in maker) *autograd.Parameter { return in.Ones(3) })},
	{Of: "Initializer.Parameter", Make: ofParameter(func(in maker) *autograd.Parameter { return in.Parameter([]float64{1, 2}) })},
	{Of: "Initializer.Draw", Make: ofParameter(func(in maker) *autograd.Parameter { return in.Draw(nn.InitOrthogonal(), 3, 2) })},
	{Of: "Initializer.Tensor", Make: makes(func(in maker) *tensor.Tensor { return in.Tensor([]float64{1, 2}) }, func(m *failing, x *tensor.Tensor) any { return m.Numbers(x) })},
	{Of: "Initializer.Labels", Make: makes(func(in maker) *tensor.Tensor { return in.Labels([]int{1, 0}, 2) }, func(m *failing, x *tensor.Tensor) any { return x.Shape() })},
	{Of: "Initializer.BatchNorm", Make: makes(func(in maker) nn.Layer { return in.BatchNorm(2) }, seeLayer)},
	{Of: "BatchNorm.Forward", Partly: moved, Make: batchNormed},
	{Of: "Initializer.Embedding Embedding.Forward", Make: applies(func(in maker) *nn.Embedding { return in.Embedding(3, 2) }, func(t onTape, l *nn.Embedding, x variable) variable {
		return t.Mul(l.Forward(t, autograd.Upload(t, []int32{2, 0})), x)
	}, 2, 2)},
	{Of: "Initializer.Reset", Ends: queued, Make: func(t testing.TB, m *failing) failtest.Trial {
		ps := m.Operands(tensor.Float64, []int{2, 3})
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				in := newInit(ctx, m)
				in.Reset(ps[0].Parameter, nn.InitUniform(0, 1))
				return in.Close()
			},
			See:  func() any { return m.SeeParameters(ps) },
			Undo: ps.Release,
		}
	}},
	{Of: "Initializer.Close", Ends: lost, Make: func(t testing.TB, m *failing) failtest.Trial {
		in := newInit(m.Ctx, m)
		l := in.Linear(3, 2)
		nn.Own(in, optim.NewSGD(l.Parameters(), optim.SGDConfig{}))
		require.NoError(t, in.Err())
		return failtest.Trial{Do: func(context.Context) error { return in.Close() }, See: func() any {
			live, bytes := m.RT.Live()
			return []any{live, bytes}
		}}
	}},
	{Of: "Initializer.Steps", Make: func(t testing.TB, m *failing) failtest.Trial {
		ps := m.Operands(tensor.Float64, []int{2, 3})
		var losses []float64
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				in := newInit(ctx, m)
				losses = nil
				var got []float64
				for _, tape := range in.Steps(2) {
					loss := tape.Sum(tape.Dropout(tape.Exp(tape.Param(ps[0].Parameter)), 0.5))
					got = append(got, loss.Item())
					_, _ = tape.Backward(loss) // its error sticks to in
				}
				if err := in.Err(); err != nil {
					return errors.Join(err, ps.ZeroGrad(m.Ctx))
				}
				losses = got
				return nil
			},
			See:  func() any { return append(m.SeeParameters(ps), losses) },
			Undo: ps.Release,
		}
	}},
	{Of: "RNN.Run GRU.Run LSTM.Run", Make: applies(func(in maker) nn.Sequential {
		return nn.Sequential{in.RNN(3, 3), in.GRU(3, 3), in.LSTM(3, 3)}
	}, func(t onTape, l nn.Sequential, x variable) variable {
		h := t.Narrow(x, 0, 0, 1)
		y, h1 := l[0].(*nn.RNN).Run(t, x, h)
		y, h2 := l[1].(*nn.GRU).Run(t, y, h1)
		y, h3, c3 := l[2].(*nn.LSTM).Run(t, y, h2, h)
		return t.Cat(0, y, h3, c3)
	}, 2, 1, 3)},
	{Of: "MultiHeadAttention.Attend", Make: applies(func(in maker) *nn.MultiHeadAttention { return in.MultiHeadAttention(4, 2) }, func(t onTape, l *nn.MultiHeadAttention, x variable) variable {
		return l.Attend(t, x, t.Exp(x), t.Neg(x), autograd.AttentionConfig{})
	}, 2, 1, 4)},
	{Of: "MultiHeadAttention.AttendWeights", Make: applies(func(in maker) *nn.MultiHeadAttention { return in.MultiHeadAttention(4, 2) }, func(t onTape, l *nn.MultiHeadAttention, x variable) variable {
		y, w := l.AttendWeights(t, x, x, x, autograd.AttentionConfig{}, true)
		return t.Cat(0, t.Reshape(y, -1), t.Reshape(w, -1))
	}, 2, 1, 4)},
	{Of: "LayerNorm.ForwardAdd RMSNorm.ForwardAdd", Make: applies(func(in maker) nn.Sequential {
		return nn.Sequential{in.LayerNorm(3), in.RMSNorm(3)}
	}, func(t onTape, l nn.Sequential, x variable) variable {
		sum, norm := l[0].(*nn.LayerNorm).ForwardAdd(t, x, t.Exp(x))
		sum, norm = l[1].(*nn.RMSNorm).ForwardAdd(t, sum, norm)
		return t.Mul(sum, norm)
	}, 2, 3)},
	{Of: "NewLengths Lengths.Release RNN.RunPadded GRU.RunPadded LSTM.RunPadded", Make: func(t testing.TB, m *failing) failtest.Trial {
		lengths, err := nn.NewLengths(m.Ctx, m.RT, 3, 2, 3)
		require.NoError(t, err)
		trial := applies(func(in maker) nn.Sequential {
			return nn.Sequential{in.RNN(2, 2), in.GRU(2, 2), in.LSTM(2, 2, nn.Bidirectional())}
		}, func(t onTape, l nn.Sequential, x variable) variable {
			y, h1 := l[0].(*nn.RNN).RunPadded(t, x, lengths, nil)
			y, h2 := l[1].(*nn.GRU).RunPadded(t, y, lengths, h1)
			y, h3, c3 := l[2].(*nn.LSTM).RunPadded(t, y, lengths, t.Cat(0, h2, h2), nil)
			return t.Cat(0, t.Reshape(y, -1), t.Reshape(h3, -1), t.Reshape(c3, -1))
		}, 3, 2, 2)(t, m)
		undo := trial.Undo
		trial.Undo = func() error { return errors.Join(undo(), lengths.Release()) }
		return trial
	}},
	{Of: "Lengths.Set", Make: func(t testing.TB, m *failing) failtest.Trial {
		lengths, err := nn.NewLengths(m.Ctx, m.RT, 3, 2, 3)
		require.NoError(t, err)
		return failtest.Trial{Do: func(ctx context.Context) error { return lengths.Set(ctx, 3, 1) }, Undo: lengths.Release}
	}},
	{Of: "made: NewLengths", Make: releasable(func(ctx context.Context, m *failing) (releaser, error) { return nn.NewLengths(ctx, m.RT, 3, 2, 3) })},
	{Of: "NewKVCache KVCache.Release", Make: releasable(func(ctx context.Context, m *failing) (releaser, error) {
		return nn.NewKVCache(ctx, m.RT, nn.KVCacheConfig{Layers: 2, Batch: 1, Heads: 2, Length: 3, HeadSize: 2})
	})},
	{Of: "KVCache.Attend MultiHeadAttention.ForwardCached", Make: func(t testing.TB, m *failing) failtest.Trial {
		in := newInit(m.Ctx, m)
		l := in.MultiHeadAttention(4, 2)
		cache, err := nn.NewKVCache(m.Ctx, m.RT, nn.KVCacheConfig{Layers: 1, Batch: 1, Heads: 2, Length: 3, HeadSize: 2, Dtype: tensor.Float64})
		require.NoError(t, errors.Join(err, in.Err()))
		x := in.Tensor([]float64{1, 2, 3, 4, 4, 3, 2, 1}, 2, 1, 4)
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				cache.Reset()
				tape := autograd.NoGrad(ctx, m.RT)
				l.ForwardCached(tape, tape.Input(x), cache, 0, autograd.AttentionConfig{})
				return tape.Close()
			},
			See:  func() any { return []any{cache.Len() >= 0, live(m)} },
			Undo: func() error { return errors.Join(cache.Release(), in.Close()) },
		}
	}},
	{Of: "SaveModel", Make: func(t testing.TB, m *failing) failtest.Trial {
		in := newInit(m.Ctx, m)
		l, path := in.Linear(3, 2), filepath.Join(t.TempDir(), "model")
		require.NoError(t, in.Err())
		return failtest.Trial{
			Do: func(ctx context.Context) error { return nn.SaveModel(ctx, l, path) },
			See: func() any {
				text, _ := os.ReadFile(path)
				names, err := os.ReadDir(filepath.Dir(path))
				return []any{string(text), len(names), err}
			},
			Undo: in.Close,
		}
	}},
	{Of: "LoadModel", Partly: read, Ends: queued, Make: loads(func(ctx context.Context, model nn.Layer, path string) error {
		return nn.LoadModel(ctx, model, path)
	})},
	{Of: "LoadWeights NameModules", Partly: read, Ends: queued, Make: loads(func(ctx context.Context, model nn.Layer, path string) error {
		f, err := safetensors.Open(path)
		if err != nil {
			return err
		}
		_, err = nn.LoadWeights(ctx, model, f)
		return errors.Join(err, nn.NameModules(model), f.Close())
	})},
	{Of: "LoadWeights transposed and tied", Partly: read, Ends: queued, Make: loadsTied},
}

// loadsTied is a trial of a weight that is transposed, and has two names in the source.
func loadsTied(t testing.TB, m *failing) failtest.Trial {
	in := newInit(m.Ctx, m)
	saved, l := in.Parameter([]float64{1, 2, 3, 4, 5, 6}, 2, 3), &nn.Linear{Weight: in.Zeros(3, 2)}
	require.NoError(t, in.Err())
	var file bytes.Buffer
	require.NoError(t, safetensors.Write(m.Ctx, &file, []safetensors.Named{{Name: "0.weight", Tensor: saved.Value()}, {Name: "1.weight", Tensor: saved.Value()}}, nil))
	model := nn.Sequential{l, &nn.Linear{Weight: l.Weight}}
	transposed := nn.Transpose(func(string) bool { return true })
	numbers := func() []float64 { return m.Numbers(l.Weight.Value()) }
	return failtest.Trial{
		Do: func(ctx context.Context) error {
			f, err := safetensors.New(failtest.ReaderAt(m.Faults, bytes.NewReader(file.Bytes())), int64(file.Len()))
			if err != nil {
				return err
			}
			_, err = nn.LoadWeights(ctx, model, f, transposed)
			return err
		},
		See:  func() any { return numbers() },
		Undo: in.Close,
		Left: func(before any, err error) error {
			if now := numbers(); !reflect.DeepEqual(now, before) && !reflect.DeepEqual(now, []float64{1, 4, 2, 5, 3, 6}) {
				return fmt.Errorf("%v is loaded: %w", now, err)
			}
			return nil
		},
	}
}

// captureRows are captures and replays. They need a cache.
var captureRows = []failtest.Row[*failing]{
	{Of: "Initializer.Steps in a capture", Make: captured(false)},
	{Of: "Initializer.Steps replayed", Partly: map[failtest.Kind]string{
		failtest.Failed: "a replay counts its step, and draws its seed, before it calls the driver",
	}, Make: captured(true)},
}

// captured is a trial of the capture of a training's step or of its replay. See shows the
// parameters and the state of the random numbers, after a replay of the trial's capture.
func captured(replay bool) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		in, ps := newInit(m.Ctx, m), m.Operands(tensor.Float64, []int{2, 3})
		sgd := nn.Own(in, optim.NewSGD(ps, optim.SGDConfig{Momentum: 0.5}))
		require.NoError(t, errors.Join(in.Err(), sgd.Prepare(m.Ctx)))
		var graph *tensor.Graph
		capture := func(ctx context.Context) error {
			g, err := m.RT.Capture(ctx, func(context.Context) error {
				for _, tape := range in.Steps(1) {
					optim.Minimize(tape, tape.Sum(tape.Dropout(tape.Exp(tape.Param(ps[0].Parameter)), 0.5)), sgd)
				}
				return in.Err()
			})
			if err == nil {
				graph = g
			}
			return err
		}
		trial := failtest.Trial{
			Do: capture,
			See: func() any {
				if graph != nil && !replay {
					require.NoError(t, graph.Replay(m.Ctx))
				}
				state, err := in.RandomState()
				return []any{m.SeeOptimizer(sgd), state, err, in.Err()}
			},
			Undo: func() error { return errors.Join(ps.Release(), in.Close(), graph.Close()) },
		}
		if replay {
			require.NoError(t, capture(m.Ctx))
			trial.Do = func(ctx context.Context) error { return graph.Replay(ctx) }
			trial.Left = func(before any, err error) error {
				was, now := before.([]any)[0].([]any)[:2], m.SeeParameters(ps)
				if !reflect.DeepEqual(now, was) {
					return fmt.Errorf("%v, want %v: %w", now, was, err)
				}
				return nil
			}
		}
		return trial
	}
}

// read is the reason why a part of a model may be loaded.
var read = map[failtest.Kind]string{failtest.Failed: "an error of reading may leave a part loaded", failtest.OutOfMemory: "as failed", failtest.Ended: "as failed"}

// loads is a trial of a model that is loaded from a file of other numbers. After a failure each
// parameter has the numbers from before or those of the file.
func loads(load func(ctx context.Context, model nn.Layer, path string) error) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		in, path := newInit(m.Ctx, m), filepath.Join(t.TempDir(), "model")
		saved, l := in.Linear(3, 2), in.Linear(3, 2)
		require.NoError(t, errors.Join(in.Err(), nn.SaveModel(m.Ctx, saved, path)))
		want := m.SeeParameters(saved.Parameters())
		trial := failtest.Trial{
			Do:   func(ctx context.Context) error { return load(ctx, l, path) },
			See:  func() any { return m.SeeParameters(l.Parameters()) },
			Undo: in.Close,
		}
		trial.Left = func(before any, err error) error {
			for i, now := range m.SeeParameters(l.Parameters()) {
				if was := before.([]any)[i]; !reflect.DeepEqual(now, was) && !reflect.DeepEqual(now, want[i]) {
					return fmt.Errorf("%v, want %v or %v: %w", now, was, want[i], err)
				}
			}
			return nil
		}
		return trial
	}
}

type releaser interface{ Release() error }

// releasable is a trial of an object that is made and released.
func releasable(make func(ctx context.Context, m *failing) (releaser, error)) func(testing.TB, *failing) failtest.Trial {
	return func(_ testing.TB, m *failing) failtest.Trial {
		var made releaser
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				x, err := make(ctx, m)
				if err == nil {
					made = x
				}
				return err
			},
			See:  func() any { return live(m) },
			Undo: func() error { return made.Release() },
		}
	}
}

func live(m *failing) int {
	tensors, _ := m.RT.Live()
	return tensors
}
