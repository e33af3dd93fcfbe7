package callframe

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFromUser: a stack begins at the program's own line. Calls are given as "function file";
// without a file they are Go functions.
func TestFromUser(t *testing.T) {
	const alloc = "memcache.(*Cache).Alloc;tensor.(*Runtime).allocIn;tensor.(*Runtime).New;"
	for stack, want := range map[string]string{
		alloc + "autograd.(*Tape).Linear;autograd/nn.(*Linear).Forward;*main.(*Net).Forward;autograd/nn.(*Sequential).Forward;*main.main":    "*main.(*Net).Forward;autograd/nn.(*Sequential).Forward;*main.main",
		alloc + "*sync.(*Once).Do;tensor.(*Runtime).Ones;*example.com/net.Train.func1":                                                       "*example.com/net.Train.func1",
		alloc + "examples/mnist.train;*testing.tRunner":                                                                                      "examples/mnist.train;*testing.tRunner",
		alloc + "autograd.TestX a_test.go;*testing.tRunner":                                                                                  "autograd.TestX a_test.go;*testing.tRunner",
		alloc + "autograd_test.TestX.func1 a_test.go":                                                                                        "autograd_test.TestX.func1 a_test.go",
		alloc + "autograd.(*Tape).step;autograd.(*Tape).Backward;autograd.(*Tape).Backward.func1;*sync.(*WaitGroup).Go.func1":                "autograd.(*Tape).Backward",
		alloc + "tensor.Item[...];tensor.Item[...].func1;tensor.(*env).Scratch;tensor/internal/op.(*Backend).Do;internal/x.Do":               "tensor.Item[...]",
		"memcache.(*shard).add;memcache.(*Cache).Alloc;transfer/loader.(*slot).fill;transfer/loader.(*Loader).run;transfer/loader.New.func1": "transfer/loader.(*Loader).run",
		"forward net.py;sort net.py": "forward net.py;sort net.py",
		"*sort sort.py;*main.main":   "*sort sort.py;*main.main",
		"*unknown ;*main.main":       "*unknown ;*main.main",
		"*runtime.main":              "*runtime.main",
		"":                           "",
	} {
		var calls []string
		if stack != "" {
			calls = strings.Split(stack, ";")
		}
		got := FromUser(calls, func(call string) (string, string) {
			function, file, ok := strings.Cut(call, " ")
			if !ok {
				file = "x.go"
			}
			if function, foreign := strings.CutPrefix(function, "*"); foreign {
				return function, file
			}
			return module + function, file
		})
		require.Equal(t, want, strings.Join(got, ";"), stack)
	}
}
