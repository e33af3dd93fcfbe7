// Command vector generates the assembly of package simd's vector functions: "go generate" in that package runs it, once for each
// family of functions.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/mmcloughlin/avo/build"
)

// families are what is generated, by name.
var families = map[string]func(){
	"arithmetic": arithmetic,
	"exp":        exponentials,
	"step":       steps,
	"function":   functions,
	"random":     random,
	"sum":        sums,
	"row":        rows,
}

func main() {
	family := flag.String("family", "", "which functions to generate")
	amd64 := flag.String("dispatch", "", "where to write the Go functions that call all families' assembly, in place of that")
	other := flag.String("other", "", "where to write those of other processors")
	flag.Parse()
	if *amd64 != "" {
		dispatch(*amd64, *other)
		return
	}
	generate, ok := families[*family]
	if !ok {
		fmt.Fprintf(os.Stderr, "no family %q\n", *family)
		os.Exit(2)
	}
	build.ConstraintExpr("!purego")
	generate()
	build.Generate()
}
