package tapetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
	"github.com/cistern-ml/cistern/tensor"
)

// Default is the documented signature of PyTorch 2.11, without arguments that do not exist here,
// and the behaviour of zero values and missing options of these types or functions.
type Default struct {
	Names  string
	Python string
	Got    func(b *Bench, in *nn.Initializer) string
}

// Signature formats arguments as PyTorch does: names and values in turn.
func Signature(pairs ...any) string {
	var all []string
	for i := 0; i < len(pairs); i += 2 {
		text := fmt.Sprint(pairs[i+1])
		switch v := pairs[i+1].(type) {
		case bool:
			text = map[bool]string{true: "True", false: "False"}[v]
		case float64:
			text = fmt.Sprintf("%.7g", v)
		}
		all = append(all, fmt.Sprintf("%v=%s", pairs[i], text))
	}
	return strings.Join(all, ", ")
}

// RequireDefaults compares all. Each type and function with defaults in the package of the working
// directory must be in all or in without. All of its numbers must be given, unless it has none.
func RequireDefaults(t *testing.T, without string, all []Default) {
	t.Helper()
	b := Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1), nn.Dtype(tensor.Float64))
	defer func() { require.NoError(t, in.Close()) }()
	known := map[string]bool{}
	for _, name := range strings.Fields(without) {
		known[name] = true
	}
	for _, d := range all {
		require.Equal(t, d.Python, d.Got(b, in), d.Names)
		require.NoError(t, in.Err(), d.Names)
		for _, name := range strings.Fields(d.Names) {
			known[name] = true
		}
	}
	for name, methods := range surface.Exported(t).Methods {
		if strings.HasSuffix(name, "Config") || slices.Contains(methods, "Forward") || slices.Contains(methods, "LR") && !slices.Contains(methods, "SetLR") && name != "Scheduler" {
			require.True(t, known[name], "the defaults of %s are not compared", name)
		}
		for _, method := range methods {
			if strings.HasSuffix(method, "Loss") || strings.HasPrefix(method, "BCE") || strings.HasSuffix(method, "Entropy") {
				require.True(t, known[name+"."+method], "the defaults of %s.%s are not compared", name, method)
			}
		}
	}
}
