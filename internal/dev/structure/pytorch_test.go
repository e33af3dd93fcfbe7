package structure

import (
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNamesBesidePyTorch: every name of ours in the tables of docs/pytorch.md exists, and every row
// has one.
func TestNamesBesidePyTorch(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "pytorch.md"))
	require.NoError(t, err)
	packages := map[string]*types.Package{}
	for _, p := range ours(t) {
		if !strings.Contains(p.short(), "internal") && p.Name != "main" && !strings.HasPrefix(p.short(), "device/") {
			packages[p.Name] = checked(t, p)
		}
	}
	names, rows := 0, 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, " | ")
		if len(cells) != 2 || !strings.HasPrefix(line, "| ") || line == "| PyTorch | here |\n" {
			continue
		}
		rows++
		found := regexp.MustCompile("`([a-z]+)\\.([A-Z]\\w*)(?:\\.(\\w+))?`").FindAllStringSubmatch(cells[1], -1)
		require.NotEmpty(t, found, line)
		for _, m := range found {
			names++
			require.Contains(t, packages, m[1], line)
			require.NoError(t, lookUp(packages[m[1]], m[2], m[3]), line)
		}
		require.Equal(t, strings.Count(cells[1], "`"), 2*len(found), "what else is quoted in %s", line)
	}
	require.Greater(t, rows, 60)
	require.Greater(t, names, 100)
	tensor := packages["tensor"]
	require.Error(t, lookUp(tensor, "Opens", ""))
	require.Error(t, lookUp(tensor, "Runtime", "Matmul"))
	require.Error(t, lookUp(tensor, "Runtime", "cache"))
	require.Error(t, lookUp(tensor, "Open", "Name"))
}

// TestNamesInModels: every name of the module in the table of docs/guide/models.md beside torch.nn
// exists, and follows its package or a receiver.
func TestNamesInModels(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/guide/models.md"))
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "\n| torch.nn, torch.optim | here | not here |\n|---|---|---|\n")
	require.True(t, ok)
	table, _, _ = strings.Cut(table, "\n\n")
	packages := map[string]*types.Package{}
	for _, p := range ours(t) {
		if in(p.short(), "autograd") && !strings.Contains(p.short(), "internal") || p.short() == "tensor" {
			packages[p.Name] = checked(t, p)
		}
	}
	receivers := map[string][2]string{"in": {"nn", "Initializer"}, "t": {"autograd", "Tape"}}
	names := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		require.Len(t, cells, 3, line)
		if same := regexp.MustCompile("^the same in `(\\w+)`$").FindStringSubmatch(cells[1]); same != nil {
			require.Contains(t, packages, same[1], line)
			for _, name := range regexp.MustCompile(`[A-Z]\w+`).FindAllString(cells[0], -1) {
				names++
				if lookUp(packages[same[1]], name, "") != nil { // AdamW has no type of its own
					require.NoError(t, lookUp(packages[same[1]], "New"+name, ""), line)
				}
			}
			continue
		}
		found := regexp.MustCompile("`(\\w+)\\.(\\w+)").FindAllStringSubmatch(cells[1], -1)
		require.Equal(t, strings.Count(cells[1], "`"), 2*len(found), "what else is quoted in %s", line)
		for _, m := range found {
			names++
			if r, ok := receivers[m[1]]; ok {
				require.NoError(t, lookUp(packages[r[0]], r[1], m[2]), line)
				continue
			}
			require.Contains(t, packages, m[1], line)
			require.NoError(t, lookUp(packages[m[1]], m[2], ""), line)
		}
	}
	require.Greater(t, names, 50)
}

// lookUp finds an exported name of a package, or an exported field or method of one.
func lookUp(pkg *types.Package, name, member string) error {
	object := pkg.Scope().Lookup(name)
	if object == nil {
		return types.Error{Msg: pkg.Name() + " has no " + name}
	}
	if member == "" {
		return nil
	}
	_, isType := object.(*types.TypeName)
	found, _, _ := types.LookupFieldOrMethod(object.Type(), true, pkg, member)
	if !isType || found == nil || !token.IsExported(member) {
		return types.Error{Msg: pkg.Name() + "." + name + " has no " + member}
	}
	return nil
}
