package safetensors_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

type failing = tapetest.Failing

// saved are tensors of two dtypes, and one that is streamed, which are written to a file.
type saved struct {
	tensors  []safetensors.Named
	streamed safetensors.Streamed
}

func newSaved(t testing.TB, m *failing) saved {
	a := tensorOf(t, m, tensor.Float64, 2, 3)
	b := tensorOf(t, m, tensor.Float16, 3)
	return saved{[]safetensors.Named{{Name: "a", Tensor: a}, {Name: "b", Tensor: b}}, safetensors.Streamed{
		Name: "c", Dtype: tensor.Float64, Shape: tensor.Shape{2, 3},
		Write: func(ctx context.Context, w io.Writer) error {
			return tensor.WriteBytes(ctx, a, failtest.Writer(m.Faults, w))
		},
	}}
}

func tensorOf(t testing.TB, m *failing, dtype tensor.Dtype, shape ...int) *tensor.Tensor {
	x, err := m.RT.Full(m.Ctx, 1.5, dtype, shape...)
	require.NoError(t, err)
	return x
}

func (s saved) release() error {
	return errors.Join(s.tensors[0].Release(), s.tensors[1].Release())
}

// file is the bytes of the file.
func (s saved) file(t testing.TB, m *failing) []byte {
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(m.Ctx, &b, s.tensors, nil, s.streamed))
	return b.Bytes()
}

// loads is a trial of reading a file into tensors that Undo releases. See shows their numbers.
func loads(into func(t testing.TB, m *failing) []*tensor.Tensor, load func(ctx context.Context, m *failing, f *safetensors.File, into []*tensor.Tensor) ([]*tensor.Tensor, error)) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		s := newSaved(t, m)
		data := s.file(t, m)
		require.NoError(t, s.release())
		all := into(t, m)
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				f, err := safetensors.New(failtest.ReaderAt(m.Faults, bytes.NewReader(data)), int64(len(data)))
				if err != nil {
					return err
				}
				made, err := load(ctx, m, f, all)
				if err == nil {
					all = made
				}
				return errors.Join(err, f.Close())
			},
			See: func() any {
				var numbers [][]float64
				for _, x := range all {
					numbers = append(numbers, m.Numbers(x))
				}
				return numbers
			},
			Undo: func() (err error) {
				for _, x := range all {
					err = errors.Join(err, x.Release())
				}
				return err
			},
		}
	}
}

// none is the start of a load that makes a tensor.
func none(testing.TB, *failing) []*tensor.Tensor { return nil }

// two are tensors that take a and b.
func two(t testing.TB, m *failing) []*tensor.Tensor {
	a, b := tensorOf(t, m, tensor.Float64, 2, 3), tensorOf(t, m, tensor.Float16, 3)
	require.NoError(t, errors.Join(m.RT.Zero(m.Ctx, a), m.RT.Zero(m.Ctx, b)))
	return []*tensor.Tensor{a, b}
}

// before is the reason why the first tensor may be loaded when the second one fails.
var before = map[failtest.Kind]string{
	failtest.Failed: "tensors before the one that failed are loaded", failtest.OutOfMemory: "as failed", failtest.Ended: "as failed",
}

// firstOnly checks after a failure that only the first one of two tensors is loaded.
func firstOnly(of func(testing.TB, *failing) failtest.Trial) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		trial := of(t, m)
		trial.Left = func(_ any, err error) error {
			if now := trial.See(); !reflect.DeepEqual(now, [][]float64{{1.5, 1.5, 1.5, 1.5, 1.5, 1.5}, {0, 0, 0}}) {
				return fmt.Errorf("%v is loaded: %w", now, err)
			}
			return nil
		}
		return trial
	}
}

// queued is the reason why a failure of Record is not undone.
var queued = map[string]string{"Record": "the copy is queued, and nothing says when it ends"}

var failureRows = []failtest.Row[*failing]{
	{Of: "Write", Make: func(t testing.TB, m *failing) failtest.Trial {
		s := newSaved(t, m)
		var text string
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				var b bytes.Buffer
				err := safetensors.Write(ctx, failtest.Writer(m.Faults, &b), s.tensors, map[string]string{"k": "v"}, s.streamed)
				if err == nil {
					text = b.String()
				}
				return err
			},
			See:  func() any { return text },
			Undo: s.release,
		}
	}},
	{Of: "WriteFile Open", Make: func(t testing.TB, m *failing) failtest.Trial {
		s, path := newSaved(t, m), filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(path, []byte("an older file"), 0o600))
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				if err := safetensors.WriteFile(ctx, path, s.tensors, nil, s.streamed); err != nil {
					return err
				}
				f, err := safetensors.Open(path)
				return errors.Join(err, f.Close())
			},
			See: func() any {
				text, err := os.ReadFile(path)
				others, dirErr := os.ReadDir(filepath.Dir(path))
				return []any{string(text), len(others), err, dirErr}
			},
			Undo: s.release,
		}
	}},
	{Of: "New File.Load File.Reader File.Close", Make: loads(none, func(ctx context.Context, m *failing, f *safetensors.File, _ []*tensor.Tensor) ([]*tensor.Tensor, error) {
		r, err := f.Reader("a")
		if err == nil {
			_, err = io.ReadAll(r)
		}
		if err != nil {
			return nil, err
		}
		x, err := f.Load(ctx, m.RT, "b")
		return []*tensor.Tensor{x}, err
	})},
	{Of: "File.LoadInto", Ends: queued, Make: loads(two, func(ctx context.Context, _ *failing, f *safetensors.File, into []*tensor.Tensor) ([]*tensor.Tensor, error) {
		return into, f.LoadInto(ctx, "b", into[1])
	})},
	{Of: "File.Check File.LoadAll", Ends: queued, Partly: before, Make: firstOnly(loads(two, func(ctx context.Context, _ *failing, f *safetensors.File, into []*tensor.Tensor) ([]*tensor.Tensor, error) {
		all := []safetensors.Named{{Name: "a", Tensor: into[0]}, {Name: "b", Tensor: into[1]}}
		return into, errors.Join(f.Check(all, f.Tensors()[:1]), f.LoadAll(ctx, all))
	}))},
}

// TestFilesFail: whichever driver call, allocation, read, write or check of a context fails, a file
// is complete or the older one, a tensor is loaded or unchanged, and both succeed afterwards.
func TestFilesFail(t *testing.T) { tapetest.UncachedSuite(t, failureRows) }
