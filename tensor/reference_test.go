package tensor_test

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/backendtest"
)

// TestOperationsAgainstTheReference compares about five random cases of each operation and
// gradient, in each floating-point dtype: of any shape, one element, none, odd dimensions and a
// line. The tests of package backendtest have more, including large arrays and special numbers.
func TestOperationsAgainstTheReference(t *testing.T) {
	if race.Enabled || cisterntest.Named() != "" {
		t.Skip("package backendtest does more of the same")
	}
	cases := flag.Lookup("backendtest.cases")
	if cases.Value.String() == "0" {
		require.NoError(t, cases.Value.Set("380"))
		defer func() { require.NoError(t, cases.Value.Set("0")) }()
	}
	backendtest.Run(t, func() (*tensor.Runtime, error) { return tensor.Open("host?capacity=1GiB") })
}
