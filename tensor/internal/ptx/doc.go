// Package ptx holds the kernels of package tensor for GPUs: CUDA C, a file for each family, and what nvcc makes of it for
// compute capability 7.0, which the driver compiles for any later GPU.
package ptx

import (
	"embed"
	"io/fs"
	"regexp"
	"sync"
)

//go:embed *.ptx
var files embed.FS

// Image is a module to load: what one file of kernels was compiled to.
type Image struct {
	Name string // of the file
	PTX  []byte
}

// Find returns the image that has a kernel, or nil.
func Find(kernel string) *Image { return index()[kernel] }

var entry = regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\(`)

var index = sync.OnceValue(func() map[string]*Image {
	names, err := fs.Glob(files, "*.ptx")
	if err != nil {
		panic(err) // the pattern is wrong
	}
	all := map[string]*Image{}
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			panic(err) // it is in the program
		}
		image := &Image{Name: name, PTX: text}
		for _, found := range entry.FindAllSubmatch(text, -1) {
			all[string(found[1])] = image
		}
	}
	return all
})
