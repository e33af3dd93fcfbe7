package plan_test

import (
	"fmt"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Example plans the sum of a column (2, 1) and a row (3): two loops, of which the outer one moves
// in the column alone and the inner one in the row alone.
func Example() {
	b := plan.NewBroadcast([]int{2, 3}, []int{2, 1}, []int{3})
	fmt.Println(b.Dims, b.Dst, b.Src)
	// Output: [2 3] [1 0] [0 1]
}
