package device_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host"
)

// fake is a backend that records its Opens and opens nothing.
type fake struct{}

type asked struct {
	name    string
	options url.Values
}

func (a *asked) Error() string { return a.name + "?" + a.options.Encode() }

func (fake) Open(name string, options url.Values) (device.Device, error) {
	return nil, &asked{name, options}
}

func init() { device.Register("fake", fake{}) }

func TestOpenGivesTheBackendItsNameAndOptions(t *testing.T) {
	for name, want := range map[string]string{
		"fake":               "fake?",
		"fake:1":             "fake:1?",
		"fake?a=1&b=x%20y":   "fake?a=1&b=x+y",
		"fake:0?a=1&a=2":     "fake:0?a=1&a=2",
		"fake:x?path=/a?b:c": "fake:x?path=%2Fa%3Fb%3Ac",
	} {
		_, err := device.Open(name)
		var a *asked
		require.ErrorAs(t, err, &a, name)
		require.Equal(t, want, a.Error())
	}
}

func TestOpenWithoutABackend(t *testing.T) {
	for _, name := range []string{"", "tpu", "HOST", "cuda:0", ":", "?", "hos"} {
		d, err := device.Open(name)
		require.Nil(t, d)
		require.ErrorIs(t, err, device.ErrNoBackend)
		require.ErrorContains(t, err, "fake, host", "it says what there is")
		require.True(t, strings.HasPrefix(err.Error(), "device: "))
	}
	_, err := device.Open("cuda:0")
	require.ErrorContains(t, err, `package is imported: import _ "github.com/cistern-ml/cistern/device/cuda", and build with -tags cuda`)
	_, err = device.Open("null")
	require.ErrorContains(t, err, `import _ "github.com/cistern-ml/cistern/device/null"`)
	_, err = device.Open("tpu")
	require.NotContains(t, err.Error(), "import _", "nobody knows its package")
}

func TestOpenWithBadOptions(t *testing.T) {
	_, err := device.Open("fake?a=%zz")
	require.ErrorIs(t, err, device.ErrInvalid)
	require.NotErrorIs(t, err, device.ErrNoBackend)
	require.ErrorContains(t, err, "fake?a=%zz")
}

func TestRegister(t *testing.T) {
	require.Panics(t, func() { device.Register("fake", fake{}) })
	require.Panics(t, func() { device.Register("other", nil) })
	for _, bad := range []string{"", "a:b", "a?b"} {
		require.Panics(t, func() { device.Register(bad, fake{}) })
	}
	require.Equal(t, []string{"fake", "host"}, device.Drivers())
}

// FuzzOpen: for every name, Open returns a device of that name, passes the name to its backend, or
// returns an error of this package. Nothing panics.
func FuzzOpen(f *testing.F) {
	for _, seed := range []string{"host", "host?capacity=1MiB", "host?capacity=-1", "host:1",
		"host?capacity=1&capacity=2", "host?x=1", "host?capacity=99999999999999999999",
		"host?capacity=NaN", "host?", "host?;", "cuda:0", "", "?", ":", "fake:%zz"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		d, err := device.Open(name)
		var a *asked
		switch {
		case err == nil:
			base, _, _ := strings.Cut(name, "?")
			require.Equal(t, base, d.Name())
			require.Positive(t, d.Properties().TotalMemory)
			require.NoError(t, d.Close())
		case errors.As(err, &a):
			base, _, _ := strings.Cut(name, "?")
			require.Equal(t, base, a.name)
		default:
			require.Nil(t, d)
			require.True(t, strings.HasPrefix(err.Error(), "device: "), err)
		}
	})
}
