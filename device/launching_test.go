package device_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestLaunchingHooks: each hook is called before the kernel, and its function after it, nested like
// defers. Hooks that return nil are skipped.
func TestLaunchingHooks(t *testing.T) {
	var told []string
	hook := func(name string) func(device.Stream, string) func(error) {
		return func(_ device.Stream, kernel string) func(error) {
			told = append(told, name+" "+kernel)
			if kernel == "unseen" {
				return nil
			}
			return func(err error) { told = append(told, fmt.Sprint(name, " ", err)) }
		}
	}
	silent := func(device.Stream, string) func(error) { return nil }

	require.Nil(t, device.LaunchingHooks())
	require.Nil(t, device.LaunchingHooks(nil, nil))
	device.LaunchingHooks(nil, hook("only"))(nil, "k")(nil)
	require.Equal(t, []string{"only k", "only <nil>"}, told)

	told = nil
	both := device.LaunchingHooks(hook("outer"), nil, silent, hook("inner"))
	both(nil, "k")(errors.New("refused"))
	require.Equal(t, []string{"outer k", "inner k", "inner refused", "outer refused"}, told)
	require.Nil(t, both(nil, "unseen"))
}
