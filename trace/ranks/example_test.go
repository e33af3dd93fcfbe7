package ranks_test

import (
	"fmt"
	"os"
	"strings"

	"github.com/cistern-ml/cistern/trace/ranks"
)

// Example merges the steps of two ranks. In a program a trace.Profiler makes the lines.
func Example() {
	of := func(rank int) ranks.File {
		line := fmt.Sprintf(`{"step":1,"rank":%d,"world_size":2,"duration_ns":1000000}`+"\n", rank)
		return ranks.File{Name: fmt.Sprintf("rank-%d.jsonl", rank), Reader: strings.NewReader(line)}
	}
	report, err := ranks.Read(ranks.Options{}, of(0), of(1))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(report.WorldSize, report.Straggler)
	_ = report.Table(os.Stderr) // report.HTML writes the page
	// Output: 2 -1
}
