// A Pub/Sub server for tests: Google's own fake, which its client library is tested with.
//
//	pubsub PORT [CONTROL_PORT]
//
// At the control port, http://localhost:CONTROL_PORT/?call=Pull&code=14&times=3&seconds=0.5 lets the
// next calls of that name wait and fail; code 0 lets them wait only, and times=-1 means all.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A fault of one call.
type fault struct {
	sync.Mutex
	code  codes.Code
	times int
	wait  time.Duration
}

func (f *fault) set(code codes.Code, times int, wait time.Duration) {
	f.Lock()
	defer f.Unlock()
	f.code, f.times, f.wait = code, times, wait
}

// React fails the call if a fault is left; pstest goes on with it otherwise.
func (f *fault) React(any) (bool, any, error) {
	f.Lock()
	defer f.Unlock()
	if f.times == 0 {
		return false, nil, nil
	}
	if f.times > 0 {
		f.times--
	}
	time.Sleep(f.wait)
	if f.code == codes.OK {
		return false, nil, nil
	}
	return true, nil, status.Error(f.code, "injected by the test")
}

func number(text string) int {
	parsed, err := strconv.Atoi(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, "usage: pubsub PORT [CONTROL_PORT]")
		os.Exit(2)
	}
	return parsed
}

func main() {
	if len(os.Args) < 2 {
		number("")
	}
	faults := map[string]*fault{"Pull": {}, "Acknowledge": {}, "Publish": {}}
	var options []pstest.ServerReactorOption
	for name, one := range faults {
		options = append(options, pstest.ServerReactorOption{FuncName: name, Reactor: one})
	}
	server := pstest.NewServerWithPort(number(os.Args[1]), options...)
	fmt.Println(server.Addr)
	if len(os.Args) == 2 {
		select {}
	}
	http.HandleFunc("/", func(_ http.ResponseWriter, request *http.Request) {
		asked := request.URL.Query()
		seconds, _ := strconv.ParseFloat(asked.Get("seconds"), 64)
		wait := time.Duration(seconds * float64(time.Second))
		code := codes.Code(number(asked.Get("code")))
		faults[asked.Get("call")].set(code, number(asked.Get("times")), wait)
	})
	port := strconv.Itoa(number(os.Args[2]))
	fmt.Fprintln(os.Stderr, http.ListenAndServe("localhost:"+port, nil))
	os.Exit(1)
}
