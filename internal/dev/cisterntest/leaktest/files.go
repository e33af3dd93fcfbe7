package leaktest

import "fmt"

// more describes the files that are open more often in after than in before.
func more(before, after map[string]int) []string {
	var all []string
	for name, n := range after {
		if n -= before[name]; n > 0 {
			all = append(all, fmt.Sprintf("file %s was left open, %d times", name, n))
		}
	}
	return all
}
