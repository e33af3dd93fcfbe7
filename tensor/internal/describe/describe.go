// Package describe builds the texts that tensor.OnOperation passes for an operation: its results
// and operands, or the operations of a replayed graph. The types here are fmt.Stringers, so that a
// text is built only when it is read.
package describe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// Call is a call before it is passed to Do.
type Call backend.Call

// String returns the call's results and operands, such as "float32[128,10] = float32[128,784],
// float32[784,10]". For a call with a list it returns the first item and the number of items.
func (c *Call) String() string {
	var results, operands []string
	add := func(i int, r *backend.Ref, role backend.Role) {
		if r.None() {
			return
		}
		s := r.Dtype.String() + strings.ReplaceAll(fmt.Sprint(c.shape(i, r)), " ", ",")
		if role&backend.Write != 0 {
			results = append(results, s)
		}
		if role&backend.Read != 0 {
			operands = append(operands, s)
		}
	}
	for i := range c.Args[:c.N] {
		add(i, &c.Args[i], (*backend.Call)(c).Role(i))
	}
	n := c.List.Len()
	if n > 0 {
		first := c.List.Item(0)
		for i := range first {
			add(c.N+i, &first[i], c.Op.ListRoles()[i])
		}
	}
	s := strings.Join(results, ", ")
	if len(operands) > 0 {
		s += " = " + strings.Join(operands, ", ")
	}
	if n > 1 {
		s += fmt.Sprintf(", the first of %d", n)
	}
	return s
}

// shape returns the shape of operand i, or its number of elements if the shape is unknown.
func (c *Call) shape(i int, r *backend.Ref) []int {
	if i < len(c.Shapes) && c.Shapes[i] != nil {
		return c.Shapes[i]
	}
	return []int{r.Count()}
}

// Calls are calls of one operation with lists.
type Calls []*backend.Call

// String returns the texts of the calls, separated by semicolons.
func (all Calls) String() string {
	each := make([]string, len(all))
	for i, c := range all {
		each[i] = (*Call)(c).String()
	}
	return strings.Join(each, "; ")
}

// Graph describes a replayed graph.
type Graph struct {
	Name       string // such as "replay of a graph of 12 nodes"
	operations string
}

// NewGraph describes a graph with this number of nodes; operations counts its operations by name.
func NewGraph(nodes int, operations map[string]int) *Graph {
	names := slices.SortedFunc(maps.Keys(operations), func(a, b string) int {
		return cmp.Or(cmp.Compare(operations[b], operations[a]), cmp.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, operations[name])
	}
	return &Graph{fmt.Sprintf("replay of a graph of %d nodes", nodes), strings.Join(names, ", ")}
}

// String returns the counts of the operations, such as "matmul 3, sum 1", the largest first.
func (g *Graph) String() string { return g.operations }
