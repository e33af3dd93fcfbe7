// Package describe has the texts about operations that tensor.OnOperation is given. A text is made
// when it is asked for.
package describe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// Call is a call that was not given to Do yet.
type Call backend.Call

// String is the call's results and operands, such as "float32[128,10] = float32[128,784],
// float32[784,10]". Of a list it has the first item.
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

// shape is that of an operand, or its number of elements if the shape is not known.
func (c *Call) shape(i int, r *backend.Ref) []int {
	if i < len(c.Shapes) && c.Shapes[i] != nil {
		return c.Shapes[i]
	}
	return []int{r.Count()}
}

// Calls are calls of one operation with lists.
type Calls []*backend.Call

// String is those of the calls.
func (all Calls) String() string {
	each := make([]string, len(all))
	for i, c := range all {
		each[i] = (*Call)(c).String()
	}
	return strings.Join(each, "; ")
}

// Graph is the text about a replay.
type Graph struct {
	Name       string // such as "replay of a graph of 12 nodes"
	operations string
}

// NewGraph describes a graph of so many nodes, with the numbers of its operations by name.
func NewGraph(nodes int, operations map[string]int) *Graph {
	names := slices.SortedFunc(maps.Keys(operations), func(a, b string) int {
		return cmp.Or(cmp.Compare(operations[b], operations[a]), cmp.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, operations[name])
	}
	return &Graph{fmt.Sprintf("replay of a graph of %d nodes", nodes), strings.Join(names, ", ")}
}

// String is such as "matmul 3, sum 1": the most frequent operation first.
func (g *Graph) String() string { return g.operations }
