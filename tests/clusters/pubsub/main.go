// A Pub/Sub server for tests: Google's own fake, which its client library is tested with.
package main

import (
	"fmt"
	"os"
	"strconv"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "usage: pubsub PORT")
		os.Exit(2)
	}
	server := pstest.NewServerWithPort(port)
	fmt.Println(server.Addr)
	select {}
}
