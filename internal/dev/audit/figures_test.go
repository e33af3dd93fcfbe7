package audit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/trace"
)

const root = "../../.."

// elsewhere lists figures that tests of other packages compare.
var elsewhere = map[string]string{
	"cistern.collective.":            "trace/communicator_test.go: TestCollectiveSpans",
	"cistern.step.collective":        "trace/communicator_test.go: TestCollectivesOfSteps",
	"cistern.step.replay.collective": "trace/captured_test.go: TestCollectiveReplays",
	"cistern.rank":                   "trace/rank_test.go: TestParallelRankIsEverywhere",
	"cistern.world_size":             "trace/rank_test.go: TestParallelRankIsEverywhere",
	"cistern.device.pci_address":     "trace/identity_test.go: TestIdentityOfADevice",
	"cistern.device.name":            "internal/dev/audit/span_test.go: TestReports",
	"cistern.loader.waited":          "trace/transfer_test.go: TestWaitForTheLoader",
	"cistern.step.data.wait_time":    "internal/dev/audit/loader_test.go: TestLoader",
	"cistern.offload.":               "internal/dev/audit/offload_test.go: TestOffloadedSteps",
	"cistern.memory.limit":           "trace/log_test.go: TestOutOfMemoryIsLogged",
	"communicator":                   "trace/communicator_test.go: TestCollectivesOfSteps",
	"collective":                     "trace/communicator_test.go: TestCollectivesOfSteps",
	"replayed_collectives":           "trace/captured_test.go: TestCollectiveReplays",
	"start":                          "internal/dev/audit/step_test.go: TestReports",
}

// requireCovered fails unless an audit has compared a figure, or the table names a test that does.
func requireCovered(t *testing.T, name string, artefacts ...string) {
	t.Helper()
	for _, a := range artefacts {
		for place := range shown[a] {
			if place == name || strings.HasPrefix(place, name+".") || strings.HasPrefix(place, name+"[]") || strings.HasPrefix(place, name+"{") || strings.Contains(place, name+"=") {
				return
			}
		}
	}
	for prefix, where := range elsewhere {
		if strings.HasPrefix(name, prefix) {
			file, test, _ := strings.Cut(where, ": ")
			text, err := os.ReadFile(filepath.Join(root, file))
			require.NoError(t, err)
			if !strings.HasPrefix(file, "internal/dev/audit/") {
				require.Contains(t, string(text), "func "+test+"(", name)
			}
			return
		}
	}
	require.Fail(t, "a figure without an audit", "%s: package audit compares it nowhere, and elsewhere names no test of it", name)
}

// requireAllCovered fails unless each attribute key, metric and field of a step's profile has an
// audit.
func requireAllCovered(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "trace/attribute.go"), nil, 0)
	require.NoError(t, err)
	keys := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && len(call.Args) == 1 {
			if text, ok := call.Args[0].(*ast.BasicLit); ok {
				key, err := strconv.Unquote(text.Value)
				require.NoError(t, err)
				requireCovered(t, key, "spans", "events", "log", "metrics")
				keys++
			}
		}
		return true
	})
	require.Greater(t, keys, 50)
	for _, name := range metricNames(t) {
		requireCovered(t, name, "metrics")
	}
	fields := reflect.TypeFor[trace.StepProfile]()
	for i := range fields.NumField() {
		name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
		requireCovered(t, name, "trace.StepProfile")
	}
}

// metricNames are the names of all instruments in the sources of package trace.
func metricNames(t *testing.T) []string {
	names := map[string]bool{}
	sources, err := filepath.Glob(filepath.Join(root, "trace/*.go"))
	require.NoError(t, err)
	for _, source := range sources {
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		made := regexp.MustCompile(`(?:upDown|counter|gauge|share|newDurations|Histogram|Counter|Gauge)\((?:t\.meter, )?"(cistern\.[a-z._]+)"`)
		for _, m := range made.FindAllStringSubmatch(string(text), -1) {
			if !strings.HasSuffix(source, "_test.go") {
				names[m[1]] = true
			}
		}
	}
	require.Greater(t, len(names), 20)
	return slices.Sorted(maps.Keys(names))
}
