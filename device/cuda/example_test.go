package cuda_test

import (
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/cuda"
)

// Example opens the first GPU. It runs on machines with and without one.
func Example() {
	dev, err := device.Open("cuda:0")
	if errors.Is(err, device.ErrNoDevice) {
		fmt.Println(err) // names the missing part: the build tag, a driver or a GPU
		return
	}
	defer dev.Close()
	fmt.Println(dev.Name())
}
