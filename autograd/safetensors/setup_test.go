package safetensors

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/tensor"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

var ctx = context.Background()

// open makes a runtime. Its end checks that nothing leaked.
func open(t testing.TB) *tensor.Runtime {
	t.Helper()
	s := stacktest.New(t, stacktest.Config{Capacity: 256 << 20})
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, rt.Close()) })
	return rt
}

func upload[T tensor.Element](t testing.TB, rt *tensor.Runtime, data []T, shape ...int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.FromSlice(ctx, rt, data, shape...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, x.Release()) })
	return x
}

func read[T tensor.Element](t testing.TB, x *tensor.Tensor) []T {
	t.Helper()
	s, err := tensor.ToSlice[T](ctx, x, nil)
	require.NoError(t, err)
	return s
}

// file returns a file of a header and data bytes of data.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}
