package backend

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type named struct{ Backend }

func TestRegister(t *testing.T) {
	before := registry.all
	defer func() { registry.all = before }()
	registry.all = nil
	first, second := &named{}, &named{}
	broken := errors.New("no licence")
	open := func(b Backend, err error) Open { return func(Env) (Backend, error) { return b, err } }

	_, err := For(nil, "")
	require.ErrorIs(t, err, ErrOther)
	Register("host", open(first, nil))
	Register("second", open(second, nil))
	Register("other", open(nil, ErrOther))
	assert.Equal(t, []string{"other", "second", "host"}, Names(), "the newest first, and the module's own last")
	b, err := For(nil, "")
	require.NoError(t, err)
	assert.Same(t, second, b, "the first that takes the device")
	b, err = For(nil, "host")
	require.NoError(t, err)
	assert.Same(t, first, b)

	_, err = For(nil, "other")
	require.ErrorIs(t, err, ErrOther)
	require.ErrorContains(t, err, "the backend other")
	_, err = For(nil, "third")
	require.ErrorIs(t, err, ErrOther)
	require.ErrorContains(t, err, `"third"`)
	Register("broken", open(nil, broken))
	_, err = For(nil, "")
	require.ErrorIs(t, err, broken, "another error ends the search")
	require.ErrorContains(t, err, "the backend broken")
	Register("none", open(nil, nil))
	_, err = For(nil, "none")
	require.ErrorContains(t, err, "the backend none returned none")

	assert.Panics(t, func() { Register("none", open(nil, nil)) })
	assert.Panics(t, func() { Register("", open(nil, nil)) })
	assert.Panics(t, func() { Register("nil", nil) })
}
