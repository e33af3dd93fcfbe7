package tensor

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadsWithoutFaults: a read checks the fault word only after a kernel that may have written
// it, because the check is a copy.
func TestReadsWithoutFaults(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x, labels := put(r, []float32{1, 2, 3, 4}, 2, 2), put(r, []int32{1, 0})
	assert.Nil(t, r.faults.take(false), "no operation has needed the word")
	assert.Nil(t, r.faults.take(true))
	_, err := r.CrossEntropy(r.ctx, x, labels)
	require.NoError(t, err)
	assert.True(t, r.faults.armed)
	assert.Equal(t, int32(1), r.faults.word.refs.Load(), "given back by the operation")
	get[float32](r, x, nil)
	assert.False(t, r.faults.armed)
	assert.Nil(t, r.faults.take(true), "it was read")
	assert.Equal(t, int32(1), r.faults.word.refs.Load(), "given back by the read")
	word := r.faults.take(false)
	require.NotNil(t, word)
	require.NoError(t, word.release(r.ctx))
	_, err = r.CrossEntropy(r.ctx, x, labels)
	require.NoError(t, err)
	assert.Same(t, word, r.faults.word, "there is one for all")
	require.NoError(t, r.Synchronize(r.ctx))
	assert.False(t, r.faults.armed)
}

// TestCloseReleasesTheFaultWord: a closed runtime has no fault word, and allocates none.
func TestCloseReleasesTheFaultWord(t *testing.T) {
	r := newRig(t, 64<<20)
	x, labels := put(r, []float32{1, 2, 3, 4}, 2, 2), put(r, []int32{1, 0})
	loss, err := r.CrossEntropy(r.ctx, x, labels)
	require.NoError(t, err)
	for _, x := range []*Tensor{x, labels, loss} {
		require.NoError(t, x.Release())
	}
	require.NoError(t, r.Close())
	assert.Zero(t, r.cache.MemoryAllocated())
	assert.Nil(t, r.faults.take(false))
	assert.True(t, r.faults.closed)
	_, err = r.faultWord(r.ctx)
	require.ErrorIs(t, err, ErrClosed)
	assert.Zero(t, r.cache.MemoryAllocated(), "a word that came too late")
}
