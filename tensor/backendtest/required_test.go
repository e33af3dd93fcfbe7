package backendtest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// recorder is a test that records its errors.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// TestUnsupportedOperations: a trial of an unsupported operation is skipped unless the operation is
// required, and each required operation must have run.
func TestUnsupportedOperations(t *testing.T) {
	to := &recorder{TB: t}
	w := &watcher{done: map[backend.Op]map[backend.Dtype]bool{}}
	s := &skipper{to, w}
	s.Errorf("wrong")
	assert.Equal(t, []string{"wrong"}, to.errors)
	w.unsupported = backend.LSTMCell
	assert.PanicsWithValue(t, missing(backend.LSTMCell), func() { s.Errorf("wrong") })
	w.unsupported, to.errors = backend.MatMul, nil
	s.Errorf("wrong")
	assert.Contains(t, to.errors[0], "matmul, which is required")

	for _, op := range Required {
		w.mark(w.done, op, backend.Float32)
		w.mark(w.done, op, backend.Float64)
	}
	to.errors = nil
	w.supportsRequired(to)
	assert.Empty(t, to.errors)
	delete(w.done[backend.Exp], backend.Float64)
	w.supportsRequired(to)
	assert.NotEmpty(t, to.errors)
}
