! muster.f90 - the Fortran interface of Muster: the names and numbers of muster.h. The manual pages apply to both.
!
! SPDX-License-Identifier: MIT OR Apache-2.0
!
! Compile this file with your own compiler (modules are compiler specific) and link with -lmuster:
!
!     mpifort -c muster.f90 && mpifort program.f90 muster.o $(pkg-config --libs muster)
!
! muster_error_text, muster_last_error_text, muster_event_text, muster_node_name_text, muster_zone_name_text and
! muster_why_text return texts as Fortran strings. Everything else is as in C: functions that return 0 or a count, or a negative code.
! Texts that are passed in (names, keys, requests) must end with c_null_char:
! muster_node_find(context, 'n3' // c_null_char). MUSTER_NONE stands for no rank or no node.
module muster
  use, intrinsic :: iso_c_binding
  implicit none
  public

  integer(c_int), parameter :: MUSTER_OK = 0
  integer(c_int), parameter :: MUSTER_ERR_ARGUMENT = -1
  integer(c_int), parameter :: MUSTER_ERR_STRUCT_SIZE = -2
  integer(c_int), parameter :: MUSTER_ERR_NOT_INITIALIZED = -3
  integer(c_int), parameter :: MUSTER_ERR_FORKED = -4
  integer(c_int), parameter :: MUSTER_ERR_CONFIG = -5
  integer(c_int), parameter :: MUSTER_ERR_NO_SUCH_NODE = -6
  integer(c_int), parameter :: MUSTER_ERR_NO_SUCH_RANK = -7
  integer(c_int), parameter :: MUSTER_ERR_BUSY = -8
  integer(c_int), parameter :: MUSTER_ERR_LIMIT = -9
  integer(c_int), parameter :: MUSTER_ERR_NO_SUCH_KEY = -10
  integer(c_int), parameter :: MUSTER_ERR_REFUSED = -11
  integer(c_int), parameter :: MUSTER_ERR_NO_SUCH_ZONE = -12
  integer(c_int), parameter :: MUSTER_ERR_AGENT_START = -20
  integer(c_int), parameter :: MUSTER_ERR_AGENT_REFUSED = -21
  integer(c_int), parameter :: MUSTER_ERR_AGENT_LOST = -22
  integer(c_int), parameter :: MUSTER_ERR_TIMEOUT = -23
  integer(c_int), parameter :: MUSTER_ERR_SYSTEM = -24
  integer(c_int), parameter :: MUSTER_ERR_PERMISSION = -25
  integer(c_int), parameter :: MUSTER_ERR_OUTCAST = -60
  integer(c_int), parameter :: MUSTER_ERR_INTERNAL = -99
  integer(c_int), parameter :: MUSTER_NO_THREAD = 1
  integer(c_int), parameter :: MUSTER_FEED_ULFM = 2
  integer(c_int), parameter :: MUSTER_PIGGYBACK_MAX = 112
  integer(c_int), parameter :: MUSTER_NODE_UNKNOWN = 0
  integer(c_int), parameter :: MUSTER_NODE_ALIVE = 1
  integer(c_int), parameter :: MUSTER_NODE_DEGRADED = 2
  integer(c_int), parameter :: MUSTER_NODE_SUSPECT = 3
  integer(c_int), parameter :: MUSTER_NODE_FAILED = 4
  integer(c_int), parameter :: MUSTER_NODE_LEFT = 5
  integer(c_int), parameter :: MUSTER_RANK_UNKNOWN = 0
  integer(c_int), parameter :: MUSTER_RANK_ALIVE = 1
  integer(c_int), parameter :: MUSTER_RANK_HUNG = 2
  integer(c_int), parameter :: MUSTER_RANK_FAILED = 3
  integer(c_int), parameter :: MUSTER_RANK_LEFT = 4
  integer(c_int), parameter :: MUSTER_EVENT_NODE_UP = 1
  integer(c_int), parameter :: MUSTER_EVENT_NODE_DEGRADED = 2
  integer(c_int), parameter :: MUSTER_EVENT_NODE_RECOVERED = 3
  integer(c_int), parameter :: MUSTER_EVENT_NODE_SUSPECT = 4
  integer(c_int), parameter :: MUSTER_EVENT_NODE_FAILED = 5
  integer(c_int), parameter :: MUSTER_EVENT_NODE_LEFT = 6
  integer(c_int), parameter :: MUSTER_EVENT_RANK_UP = 7
  integer(c_int), parameter :: MUSTER_EVENT_RANK_HUNG = 8
  integer(c_int), parameter :: MUSTER_EVENT_RANK_RESUMED = 9
  integer(c_int), parameter :: MUSTER_EVENT_RANK_FAILED = 10
  integer(c_int), parameter :: MUSTER_EVENT_RANK_LEFT = 11
  integer(c_int), parameter :: MUSTER_EVENT_OUTCAST = 12
  integer(c_int), parameter :: MUSTER_EVENT_OVERFLOW = 13
  integer(c_int), parameter :: MUSTER_EVENT_ATTRIBUTE = 14
  integer(c_int), parameter :: MUSTER_EVENT_GROUP_FAILED = 15
  integer(c_int), parameter :: MUSTER_EVENT_MINORITY = 16
  integer(c_int), parameter :: MUSTER_EVENT_MAJORITY = 17
  integer(c_int), parameter :: MUSTER_EVENT_NODE_REFUSED = 18
  integer(c_int), parameter :: MUSTER_CALLBACK_THREAD_SAFE = 1
  integer(c_int), parameter :: MUSTER_PMIX_SUSPECT = -3701
  integer(c_int), parameter :: MUSTER_PMIX_DEGRADED = -3702
  integer(c_int), parameter :: MUSTER_PMIX_HUNG = -3703
  integer(c_int), parameter :: MUSTER_PMIX_NODE_FAILED = -3704
  integer(c_int), parameter :: MUSTER_PMIX_RANK_FAILED = -3705
  integer(c_int), parameter :: MUSTER_PMIX_BACK = -3706
  integer(c_int), parameter :: MUSTER_CAUSE_NONE = 0
  integer(c_int), parameter :: MUSTER_CAUSE_SILENCE = 1
  integer(c_int), parameter :: MUSTER_CAUSE_FUTEX = 2
  integer(c_int), parameter :: MUSTER_CAUSE_PIDFD = 3
  integer(c_int), parameter :: MUSTER_CAUSE_CORE_DUMP = 4
  integer(c_int), parameter :: MUSTER_CAUSE_STOPPED = 5
  integer(c_int), parameter :: MUSTER_CAUSE_ANNOUNCED = 6
  integer(c_int), parameter :: MUSTER_CAUSE_UNREACHABLE = 7
  integer(c_int), parameter :: MUSTER_CAUSE_TOLD = 8
  integer(c_int), parameter :: MUSTER_CAUSE_NODE_FAILED = 9
  integer(c_int), parameter :: MUSTER_CAUSE_REFUTED = 10
  integer(c_int), parameter :: MUSTER_CAUSE_JOINED = 11
  integer(c_int), parameter :: MUSTER_CAUSE_STUCK = 12
  integer(c_int), parameter :: MUSTER_CAUSE_NO_TICK = 13
  integer(c_int), parameter :: MUSTER_CAUSE_NEW_AGENT = 14

  integer(c_int), parameter :: MUSTER_AUTO = -1
  ! UINT32_MAX, as Fortran's signed integers show it.
  integer(c_int32_t), parameter :: MUSTER_NONE = -1
  integer(c_size_t), parameter :: MUSTER_BOOTSTRAP_RECORD_SIZE = 320

  ! Start from muster_config() and change what matters. For texts: c_loc of a character array that
  ! ends with c_null_char.
  type, bind(C) :: muster_config_t
    integer(c_size_t) :: struct_size
    type(c_ptr) :: job
    type(c_ptr) :: node
    type(c_ptr) :: directory
    integer(c_int32_t) :: rank
    integer(c_int32_t) :: ranks
    integer(c_int32_t) :: flags
    integer(c_int32_t) :: timeout_ms
  end type

  ! Start from muster_event().
  type, bind(C) :: muster_event_t
    integer(c_size_t) :: struct_size
    integer(c_int64_t) :: sequence
    integer(c_int64_t) :: verdict_ns
    integer(c_int64_t) :: delivered_ns
    integer(c_int32_t) :: kind
    integer(c_int32_t) :: cause
    integer(c_int32_t) :: node
    integer(c_int32_t) :: rank
    integer(c_int32_t) :: code
    integer(c_int32_t) :: silent_us
    integer(c_int32_t) :: reporter_count
    integer(c_int32_t) :: reporters(3)
    integer(c_int64_t) :: lost
    integer(c_int64_t) :: key_hash
    integer(c_int32_t) :: count
    integer(c_int32_t) :: total
  end type

  interface
    function muster_strerror(code) result(answer) bind(C)
      import :: c_int, c_ptr
      integer(c_int), value :: code
      type(c_ptr) :: answer
    end function
    function muster_error_name(code) result(answer) bind(C)
      import :: c_int, c_ptr
      integer(c_int), value :: code
      type(c_ptr) :: answer
    end function
    function muster_last_error_message() result(answer) bind(C)
      import :: c_ptr
      type(c_ptr) :: answer
    end function
    function muster_version(major, minor, patch) result(answer) bind(C)
      import :: c_int
      integer(c_int), intent(out) :: major
      integer(c_int), intent(out) :: minor
      integer(c_int), intent(out) :: patch
      integer(c_int) :: answer
    end function
    function muster_init(config, context) result(answer) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: config
      type(c_ptr), intent(out) :: context
      integer(c_int) :: answer
    end function
    function muster_finalize(context) result(answer) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: context
      integer(c_int) :: answer
    end function
    function muster_leave(context, exit_code) result(answer) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: context
      integer(c_int), value :: exit_code
      integer(c_int) :: answer
    end function
    function muster_bootstrap_record(context, record, timeout_ms) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: context
      type(c_ptr), value :: record
      integer(c_int32_t), value :: timeout_ms
      integer(c_int) :: answer
    end function
    function muster_take_bootstrap_records(context, records, processes) result(answer) bind(C)
      import :: c_int, c_ptr, c_size_t
      type(c_ptr), value :: context
      type(c_ptr), value :: records
      integer(c_size_t), value :: processes
      integer(c_int) :: answer
    end function
    function muster_node_state(context, node) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int32_t), value :: node
      integer(c_int) :: answer
    end function
    function muster_rank_state(context, rank) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int32_t), value :: rank
      integer(c_int) :: answer
    end function
    function muster_rank_node(context, rank) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int32_t), value :: rank
      integer(c_int) :: answer
    end function
    function muster_node_name(context, node, buffer, length) result(answer) bind(C)
      import :: c_char, c_int, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: context
      integer(c_int32_t), value :: node
      character(kind=c_char), dimension(*), intent(out) :: buffer
      integer(c_size_t), value :: length
      integer(c_int) :: answer
    end function
    function muster_node_group(context, node, buffer, length) result(answer) bind(C)
      import :: c_char, c_int, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: context
      integer(c_int32_t), value :: node
      character(kind=c_char), dimension(*), intent(out) :: buffer
      integer(c_size_t), value :: length
      integer(c_int) :: answer
    end function
    function muster_node_count(context) result(answer) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: context
      integer(c_int) :: answer
    end function
    function muster_rank_count(context) result(answer) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: context
      integer(c_int) :: answer
    end function
    function muster_nodes_in_state(context, state) result(answer) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: context
      integer(c_int), value :: state
      integer(c_int) :: answer
    end function
    function muster_ranks_in_state(context, state) result(answer) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: context
      integer(c_int), value :: state
      integer(c_int) :: answer
    end function
    function muster_my_rank(context) result(answer) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: context
      integer(c_int) :: answer
    end function
    function muster_my_node(context) result(answer) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: context
      integer(c_int) :: answer
    end function
    function muster_epoch(context, epoch) result(answer) bind(C)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int64_t), intent(out) :: epoch
      integer(c_int) :: answer
    end function
    function muster_node_states(context, states, length, epoch) result(answer) bind(C)
      import :: c_int, c_int64_t, c_int8_t, c_ptr, c_size_t
      type(c_ptr), value :: context
      integer(c_int8_t), dimension(*), intent(out) :: states
      integer(c_size_t), value :: length
      integer(c_int64_t), intent(out) :: epoch
      integer(c_int) :: answer
    end function
    function muster_rank_states(context, states, length, epoch) result(answer) bind(C)
      import :: c_int, c_int64_t, c_int8_t, c_ptr, c_size_t
      type(c_ptr), value :: context
      integer(c_int8_t), dimension(*), intent(out) :: states
      integer(c_size_t), value :: length
      integer(c_int64_t), intent(out) :: epoch
      integer(c_int) :: answer
    end function
    function muster_node_find(context, name) result(answer) bind(C)
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: context
      character(kind=c_char), dimension(*), intent(in) :: name
      integer(c_int) :: answer
    end function
    function muster_node_ranks(context, node, ranks, length) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: context
      integer(c_int32_t), value :: node
      integer(c_int32_t), dimension(*), intent(out) :: ranks
      integer(c_size_t), value :: length
      integer(c_int) :: answer
    end function
    function muster_zone_count(context) result(answer) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: context
      integer(c_int) :: answer
    end function
    function muster_node_zone(context, node) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int32_t), value :: node
      integer(c_int) :: answer
    end function
    function muster_rank_zone(context, rank) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int32_t), value :: rank
      integer(c_int) :: answer
    end function
    function muster_zone_name(context, zone, buffer, length) result(answer) bind(C)
      import :: c_char, c_int, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: context
      integer(c_int32_t), value :: zone
      character(kind=c_char), dimension(*), intent(out) :: buffer
      integer(c_size_t), value :: length
      integer(c_int) :: answer
    end function
    function muster_zone_nodes(context, zone, nodes, length) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: context
      integer(c_int32_t), value :: zone
      integer(c_int32_t), dimension(*), intent(out) :: nodes
      integer(c_size_t), value :: length
      integer(c_int) :: answer
    end function
    function muster_zone_nodes_in_state(context, zone, state) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int32_t), value :: zone
      integer(c_int), value :: state
      integer(c_int) :: answer
    end function
    function muster_wait_node(context, node, states, timeout_ms) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int32_t), value :: node
      integer(c_int32_t), value :: states
      integer(c_int32_t), value :: timeout_ms
      integer(c_int) :: answer
    end function
    function muster_wait_rank(context, rank, states, timeout_ms) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int32_t), value :: rank
      integer(c_int32_t), value :: states
      integer(c_int32_t), value :: timeout_ms
      integer(c_int) :: answer
    end function
    function muster_wait_ranks(context, ranks, states, timeout_ms) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int32_t), value :: ranks
      integer(c_int32_t), value :: states
      integer(c_int32_t), value :: timeout_ms
      integer(c_int) :: answer
    end function
    function muster_why(context, node, buffer, length) result(answer) bind(C)
      import :: c_char, c_int, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: context
      integer(c_int32_t), value :: node
      character(kind=c_char), dimension(*), intent(out) :: buffer
      integer(c_size_t), value :: length
      integer(c_int) :: answer
    end function
    function muster_tick_every(context, period_ms) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int32_t), value :: period_ms
      integer(c_int) :: answer
    end function
    function muster_tick(context) result(answer) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: context
      integer(c_int) :: answer
    end function
    function muster_heard_from(context, rank) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int32_t), value :: rank
      integer(c_int) :: answer
    end function
    function muster_sent_to(context, rank) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int32_t), value :: rank
      integer(c_int) :: answer
    end function
    function muster_piggyback_fill(context, rank, buffer, length) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: context
      integer(c_int32_t), value :: rank
      type(c_ptr), value :: buffer
      integer(c_size_t), value :: length
      integer(c_int) :: answer
    end function
    function muster_piggyback_deliver(context, rank, buffer, length) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: context
      integer(c_int32_t), value :: rank
      type(c_ptr), value :: buffer
      integer(c_size_t), value :: length
      integer(c_int) :: answer
    end function
    function muster_counter(context, name, value) result(answer) bind(C)
      import :: c_char, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: context
      character(kind=c_char), dimension(*), intent(in) :: name
      integer(c_int64_t), intent(out) :: value
      integer(c_int) :: answer
    end function
    function muster_node_state_name(state) result(answer) bind(C)
      import :: c_int, c_ptr
      integer(c_int), value :: state
      type(c_ptr) :: answer
    end function
    function muster_rank_state_name(state) result(answer) bind(C)
      import :: c_int, c_ptr
      integer(c_int), value :: state
      type(c_ptr) :: answer
    end function
    function muster_get_fd(context) result(answer) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: context
      integer(c_int) :: answer
    end function
    function muster_next_event(context, event) result(answer) bind(C)
      import :: c_int, c_ptr, muster_event_t
      type(c_ptr), value :: context
      type(muster_event_t), intent(inout) :: event
      integer(c_int) :: answer
    end function
    function muster_poll_events(context, events, most, timeout_ms) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr, c_size_t, muster_event_t
      type(c_ptr), value :: context
      type(muster_event_t), dimension(*), intent(inout) :: events
      integer(c_size_t), value :: most
      integer(c_int32_t), value :: timeout_ms
      integer(c_int) :: answer
    end function
    function muster_set_callback(context, callback, argument, safety) result(answer) bind(C)
      import :: c_funptr, c_int, c_ptr
      type(c_ptr), value :: context
      type(c_funptr), value :: callback
      type(c_ptr), value :: argument
      integer(c_int), value :: safety
      integer(c_int) :: answer
    end function
    function muster_dispatch(context, callback, argument) result(answer) bind(C)
      import :: c_funptr, c_int, c_ptr
      type(c_ptr), value :: context
      type(c_funptr), value :: callback
      type(c_ptr), value :: argument
      integer(c_int) :: answer
    end function
    function muster_event_nodes(context, event, nodes, length) result(answer) bind(C)
      import :: c_int, c_int32_t, c_ptr, c_size_t, muster_event_t
      type(c_ptr), value :: context
      type(muster_event_t), intent(in) :: event
      integer(c_int32_t), dimension(*), intent(out) :: nodes
      integer(c_size_t), value :: length
      integer(c_int) :: answer
    end function
    function muster_event_name(kind) result(answer) bind(C)
      import :: c_int, c_ptr
      integer(c_int), value :: kind
      type(c_ptr) :: answer
    end function
    function muster_cause_name(cause) result(answer) bind(C)
      import :: c_int, c_ptr
      integer(c_int), value :: cause
      type(c_ptr) :: answer
    end function
    function muster_event_describe(context, event, buffer, length) result(answer) bind(C)
      import :: c_char, c_int, c_ptr, c_size_t, muster_event_t
      type(c_ptr), value :: context
      type(muster_event_t), intent(in) :: event
      character(kind=c_char), dimension(*), intent(out) :: buffer
      integer(c_size_t), value :: length
      integer(c_int) :: answer
    end function
    function muster_publish(context, key, bytes, length) result(answer) bind(C)
      import :: c_char, c_int, c_ptr, c_size_t
      type(c_ptr), value :: context
      character(kind=c_char), dimension(*), intent(in) :: key
      type(c_ptr), value :: bytes
      integer(c_size_t), value :: length
      integer(c_int) :: answer
    end function
    function muster_withdraw(context, key) result(answer) bind(C)
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: context
      character(kind=c_char), dimension(*), intent(in) :: key
      integer(c_int) :: answer
    end function
    function muster_attribute_get(context, node, key, buffer, length) result(answer) bind(C)
      import :: c_char, c_int, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: context
      integer(c_int32_t), value :: node
      character(kind=c_char), dimension(*), intent(in) :: key
      type(c_ptr), value :: buffer
      integer(c_size_t), value :: length
      integer(c_int) :: answer
    end function
    function muster_watch(context, key) result(answer) bind(C)
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: context
      character(kind=c_char), dimension(*), intent(in) :: key
      integer(c_int) :: answer
    end function
    function muster_unwatch(context, key) result(answer) bind(C)
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: context
      character(kind=c_char), dimension(*), intent(in) :: key
      integer(c_int) :: answer
    end function
    function muster_attribute_keys(context, node, buffer, length) result(answer) bind(C)
      import :: c_char, c_int, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: context
      integer(c_int32_t), value :: node
      character(kind=c_char), dimension(*), intent(out) :: buffer
      integer(c_size_t), value :: length
      integer(c_int) :: answer
    end function
    function muster_key_hash(key) result(answer) bind(C)
      import :: c_char, c_int64_t
      character(kind=c_char), dimension(*), intent(in) :: key
      integer(c_int64_t) :: answer
    end function
    function muster_control(context, request, buffer, length) result(answer) bind(C)
      import :: c_char, c_int, c_ptr, c_size_t
      type(c_ptr), value :: context
      character(kind=c_char), dimension(*), intent(in) :: request
      character(kind=c_char), dimension(*), intent(out) :: buffer
      integer(c_size_t), value :: length
      integer(c_int) :: answer
    end function
  end interface

  interface
    function muster_strlen(text) result(length) bind(C, name='strlen')
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function
  end interface
  private :: muster_strlen, muster_text_of

contains

  ! As MUSTER_CONFIG_INIT.
  function muster_config() result(config)
    type(muster_config_t) :: config
    config = muster_config_t(c_sizeof(config), c_null_ptr, c_null_ptr, c_null_ptr, MUSTER_AUTO, MUSTER_AUTO, 0, 0)
  end function

  ! As MUSTER_EVENT_INIT.
  function muster_event() result(event)
    type(muster_event_t) :: event
    event = muster_event_t(c_sizeof(event), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, [0, 0, 0], 0, 0, 0, 0)
  end function

  ! As MUSTER_STATE: a state as a member of a set; add or ior them.
  pure function muster_state(state) result(set)
    integer(c_int), intent(in) :: state
    integer(c_int32_t) :: set
    set = ishft(1_c_int32_t, state)
  end function

  ! The description of an error code, as muster_strerror.
  function muster_error_text(code) result(text)
    integer(c_int), intent(in) :: code
    character(:), allocatable :: text
    text = muster_text_of(muster_strerror(code))
  end function

  ! The message of the last error, as muster_last_error_message: the value, the reason and the remedy.
  function muster_last_error_text() result(text)
    character(:), allocatable :: text
    text = muster_text_of(muster_last_error_message())
  end function

  ! The description of an event, as muster_event_describe; empty if that fails.
  function muster_event_text(context, event) result(text)
    type(c_ptr), intent(in) :: context
    type(muster_event_t), intent(in) :: event
    character(:), allocatable :: text
    character(kind=c_char), allocatable :: buffer(:)
    integer(c_int) :: length
    allocate(buffer(512))
    do
      length = muster_event_describe(context, event, buffer, size(buffer, kind=c_size_t))
      if (length < size(buffer)) exit
      deallocate(buffer)
      allocate(buffer(length + 1))
    end do
    text = muster_cut(buffer, length)
  end function

  ! The name of a node, as muster_node_name; empty if there is no such node.
  function muster_node_name_text(context, node) result(text)
    type(c_ptr), intent(in) :: context
    integer(c_int32_t), intent(in) :: node
    character(:), allocatable :: text
    character(kind=c_char) :: buffer(64)
    text = muster_cut(buffer, muster_node_name(context, node, buffer, size(buffer, kind=c_size_t)))
  end function

  ! The name of a zone, as muster_zone_name; empty if there is no such zone.
  function muster_zone_name_text(context, zone) result(text)
    type(c_ptr), intent(in) :: context
    integer(c_int32_t), intent(in) :: zone
    character(:), allocatable :: text
    character(kind=c_char) :: buffer(192)
    text = muster_cut(buffer, muster_zone_name(context, zone, buffer, size(buffer, kind=c_size_t)))
  end function

  ! The explanation of a node's state, as muster_why; empty if that fails.
  function muster_why_text(context, node) result(text)
    type(c_ptr), intent(in) :: context
    integer(c_int32_t), intent(in) :: node
    character(:), allocatable :: text
    character(kind=c_char), allocatable :: buffer(:)
    integer(c_int) :: length
    allocate(buffer(8192))
    do
      ! The text may be longer at the next call.
      length = muster_why(context, node, buffer, size(buffer, kind=c_size_t))
      if (length < size(buffer)) exit
      deallocate(buffer)
      allocate(buffer(length + 1))
    end do
    text = muster_cut(buffer, length)
  end function

  ! The text in a buffer that was written as by snprintf.
  function muster_cut(buffer, length) result(text)
    character(kind=c_char), intent(in) :: buffer(:)
    integer(c_int), intent(in) :: length
    character(:), allocatable :: text
    integer :: place
    allocate(character(max(0, min(length, size(buffer) - 1))) :: text)
    do place = 1, len(text)
      text(place:place) = buffer(place)
    end do
  end function

  function muster_text_of(from) result(text)
    type(c_ptr), intent(in) :: from
    character(:), allocatable :: text
    character(kind=c_char), pointer :: characters(:)
    integer :: place
    call c_f_pointer(from, characters, [muster_strlen(from)])
    allocate(character(size(characters)) :: text)
    do place = 1, len(text)
      text(place:place) = characters(place)
    end do
  end function

end module muster
