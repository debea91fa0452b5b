! Calls every function of muster.f90, as rank 0 of 2 on the node "here". A wrong kind, order or intent of an argument
! changes the results. Prints what fails.
module every_call_record
  use muster
  implicit none
  integer :: called = 0, failures = 0
  integer(c_int32_t), target :: marker = 7

contains

  subroutine expect(holds, what)
    logical, intent(in) :: holds
    character(*), intent(in) :: what
    if (holds) return
    failures = failures + 1
    print '(4a)', what, ' does not hold; last message: ', muster_last_error_text()
  end subroutine

  subroutine note(context, event, argument) bind(C)
    type(c_ptr), value :: context, argument
    type(muster_event_t), intent(in) :: event
    integer(c_int32_t), pointer :: marked
    call c_f_pointer(argument, marked)
    if (marked /= 7 .or. muster_my_rank(context) /= 0) failures = failures + 1
    if (event%kind == MUSTER_EVENT_ATTRIBUTE) called = called + 1
  end subroutine

end module

program every_call
  use every_call_record
  implicit none
  integer(c_int), parameter :: timeout_ms = 60000
  type(muster_config_t), target :: config
  character(kind=c_char, len=15), target :: job = 'every_call.f90'//c_null_char
  character(kind=c_char, len=5), target :: node = 'here'//c_null_char
  type(c_ptr) :: context

  config = muster_config()
  config%job = c_loc(job)
  config%node = c_loc(node)
  config%rank = 0
  config%ranks = 2
  call expect(muster_init(c_loc(config), context) == MUSTER_OK, 'muster_init')
  if (failures > 0) error stop 1
  call expect(muster_wait_ranks(context, 1_c_int32_t, muster_state(MUSTER_RANK_ALIVE), timeout_ms) == 1, 'wait_ranks')
  call check_names()
  call ask_view()
  call ask_copies()
  call ask_attributes()
  call ask_agent()
  call ask_progress()
  call ask_events()
  call ask_callbacks()
  call expect(muster_leave(context, 256) == MUSTER_ERR_ARGUMENT, 'leave')
  call expect(muster_finalize(context) == MUSTER_OK, 'finalize')
  call expect(muster_my_rank(context) == MUSTER_ERR_NOT_INITIALIZED, 'my_rank afterwards')
  call expect(muster_init(c_loc(config), context) == MUSTER_OK, 'init again')
  call expect(muster_leave(context, 0) == MUSTER_OK, 'leave')
  if (failures > 0) error stop 1

contains

  subroutine check_names()
    integer(c_int) :: major, minor, patch
    major = -1
    minor = -1
    patch = -1
    call expect(muster_version(major, minor, patch) == MUSTER_OK, 'version')
    call expect(min(major, minor, patch) >= 0 .and. major + minor + patch > 0, 'the version')
    call expect(word(muster_error_name(MUSTER_ERR_BUSY)) == 'MUSTER_ERR_BUSY', 'error_name')
    call expect(len(muster_error_text(MUSTER_ERR_BUSY)) > 0 .and. c_associated(muster_strerror(-8)), 'strerror')
    call expect(c_associated(muster_last_error_message()), 'last_error_message')
    call expect(word(muster_node_state_name(MUSTER_NODE_SUSPECT)) == 'Suspect', 'node_state_name')
    call expect(word(muster_rank_state_name(MUSTER_RANK_HUNG)) == 'Hung', 'rank_state_name')
    call expect(word(muster_event_name(MUSTER_EVENT_RANK_FAILED)) == 'RANK_FAILED', 'event_name')
    call expect(word(muster_cause_name(MUSTER_CAUSE_CORE_DUMP)) == 'core dump', 'cause_name')
    call expect(muster_key_hash('k'//c_null_char) /= muster_key_hash('l'//c_null_char), 'key_hash')
  end subroutine

  subroutine ask_view()
    character(kind=c_char) :: text(16)
    integer(c_int64_t) :: epoch
    call expect(muster_node_count(context) == 1 .and. muster_rank_count(context) == 2, 'counts')
    call expect(muster_my_rank(context) == 0 .and. muster_my_node(context) == 0, 'my_rank, my_node')
    call expect(muster_node_state(context, 0) == MUSTER_NODE_ALIVE, 'node_state')
    call expect(muster_rank_state(context, 0) == MUSTER_RANK_ALIVE, 'rank_state')
    call expect(muster_rank_state(context, 9) == MUSTER_ERR_NO_SUCH_RANK, 'rank_state of an unknown rank')
    call expect(muster_rank_node(context, 0) == 0, 'rank_node')
    call expect(muster_nodes_in_state(context, MUSTER_NODE_ALIVE) == 1, 'nodes_in_state')
    call expect(muster_ranks_in_state(context, MUSTER_RANK_ALIVE) == 1, 'ranks_in_state')
    call expect(muster_node_name(context, 0, text, 16_c_size_t) == 4, 'node_name')
    call expect(muster_cut(text, 4) == 'here', 'the name')
    call expect(muster_node_name_text(context, 0) == 'here', 'node_name_text')
    call expect(muster_node_group(context, 0, text, 16_c_size_t) == 0, 'node_group')
    call expect(muster_node_find(context, 'here'//c_null_char) == 0, 'node_find')
    call expect(muster_zone_count(context) == 1, 'zone_count')
    call expect(muster_node_zone(context, 0) == 0 .and. muster_rank_zone(context, 0) == 0, 'node_zone, rank_zone')
    call expect(muster_zone_name(context, 0, text, 16_c_size_t) == 1, 'zone_name')
    call expect(muster_zone_name_text(context, 0) == '/', 'zone_name_text')
    call expect(muster_zone_nodes_in_state(context, 0, MUSTER_NODE_ALIVE) == 1, 'zone_nodes_in_state')
    call expect(muster_zone_nodes_in_state(context, 0, MUSTER_NODE_FAILED) == 0, 'zone_nodes_in_state, failed')
    call expect(muster_zone_nodes_in_state(context, 1, MUSTER_NODE_ALIVE) == MUSTER_ERR_NO_SUCH_ZONE, 'no zone')
    epoch = 0
    call expect(muster_epoch(context, epoch) == MUSTER_OK, 'epoch')
    call expect(epoch > 0, 'the epoch')
    call expect(muster_wait_node(context, 0, muster_state(MUSTER_NODE_ALIVE), 0) == MUSTER_NODE_ALIVE, 'wait_node')
    call expect(muster_wait_rank(context, 0, muster_state(MUSTER_RANK_ALIVE), 0) == MUSTER_RANK_ALIVE, 'wait_rank')
    call expect(muster_wait_rank(context, 0, muster_state(MUSTER_RANK_FAILED), 1) == MUSTER_ERR_TIMEOUT, 'wait_rank')
  end subroutine

  subroutine ask_copies()
    integer(c_int8_t) :: states(4)
    integer(c_int32_t) :: ranks(4)
    integer(c_int64_t) :: epoch
    states = 9
    epoch = 0
    call expect(muster_node_states(context, states, 4_c_size_t, epoch) == 1, 'node_states')
    call expect(states(1) == MUSTER_NODE_ALIVE .and. epoch > 0, 'the states of nodes')
    states = 9
    epoch = 0
    call expect(muster_rank_states(context, states, 4_c_size_t, epoch) == 2, 'rank_states')
    call expect(all(states == [1, 0, 0, 0]) .and. epoch > 0, 'the states of ranks')
    ranks = 9
    call expect(muster_node_ranks(context, 0, ranks, 4_c_size_t) == 1, 'node_ranks')
    call expect(ranks(1) == 0 .and. ranks(2) == 9, 'the ranks')
    ranks = 9
    call expect(muster_zone_nodes(context, 0, ranks, 4_c_size_t) == 1, 'zone_nodes')
    call expect(ranks(1) == 0 .and. ranks(2) == 9, 'the nodes')
  end subroutine

  subroutine ask_attributes()
    character(kind=c_char), target :: bytes(4) = ['a', 'b', 'c', 'd']
    character(kind=c_char), target :: copy(8)
    character(kind=c_char) :: keys(8)
    call expect(muster_watch(context, 'k'//c_null_char) == MUSTER_OK, 'watch')
    call expect(muster_publish(context, 'k'//c_null_char, c_loc(bytes), 4_c_size_t) == MUSTER_OK, 'publish')
    call expect(muster_attribute_get(context, 0, 'k'//c_null_char, c_loc(copy), 8_c_size_t) == 4, 'attribute_get')
    call expect(all(copy(1:4) == bytes), 'the attribute')
    call expect(muster_attribute_keys(context, 0, keys, 8_c_size_t) == 2, 'attribute_keys')
    call expect(keys(1) == 'k' .and. keys(2) == c_null_char, 'the keys')
    call expect(muster_withdraw(context, 'k'//c_null_char) == 1, 'withdraw')
    call expect(muster_withdraw(context, 'k'//c_null_char) == 0, 'withdraw again')
    call expect(muster_unwatch(context, 'k'//c_null_char) == 1, 'unwatch')
  end subroutine

  subroutine ask_agent()
    character(kind=c_char) :: text(4096)
    character(kind=c_char), target :: record(MUSTER_BOOTSTRAP_RECORD_SIZE)
    integer(c_int64_t) :: again
    call expect(muster_why(context, 0, text, 4096_c_size_t) > 0, 'why')
    call expect(muster_cut(text, 4) == 'here', 'the reason')
    call expect(index(muster_why_text(context, 0), 'here is alive') == 1, 'why_text')
    call expect(muster_control(context, 'rails'//c_null_char, text, 4096_c_size_t) > 0, 'control')
    call expect(text(1) == '{', 'the answer')
    call expect(muster_bootstrap_record(context, c_loc(record), timeout_ms) >= 0, 'record')
    call expect(muster_take_bootstrap_records(context, c_loc(record), 1_c_size_t) >= 0, 'take_bootstrap_records')
    again = 7
    call expect(muster_counter(context, 'agents_found_again'//c_null_char, again) == MUSTER_OK, 'counter')
    call expect(again == 0, 'the counter')
  end subroutine

  subroutine ask_progress()
    character(kind=c_char), target :: piggyback(MUSTER_PIGGYBACK_MAX)
    call expect(muster_tick_every(context, 0) == MUSTER_OK .and. muster_tick(context) == MUSTER_OK, 'tick')
    call expect(muster_heard_from(context, 0) == MUSTER_OK .and. muster_sent_to(context, 0) == MUSTER_OK, 'sent_to')
    call expect(muster_piggyback_fill(context, 0, c_loc(piggyback), size(piggyback, kind=c_size_t)) == 0, 'piggyback_fill')
    call expect(muster_piggyback_deliver(context, 0, c_loc(piggyback), 0_c_size_t) == MUSTER_OK, 'piggyback_deliver')
  end subroutine

  subroutine ask_events()
    type(muster_event_t) :: event, events(2)
    character(kind=c_char) :: text(256)
    integer(c_int32_t) :: nodes(2)
    integer(c_int) :: length
    event = muster_event()
    events = muster_event()
    call expect(muster_get_fd(context) >= 0, 'get_fd')
    do while (muster_next_event(context, event) > 0)
      call expect(event%kind > 0 .and. event%verdict_ns >= 0, 'next_event')
    end do
    call make_news()
    call expect(muster_poll_events(context, events, 2_c_size_t, timeout_ms) == 1, 'poll_events')
    event = events(1)
    call expect(event%kind == MUSTER_EVENT_ATTRIBUTE .and. event%node == 0, 'the event')
    call expect(event%key_hash == muster_key_hash('news'//c_null_char), 'its key')
    call expect(event%delivered_ns >= event%verdict_ns .and. event%verdict_ns > 0, 'its times')
    nodes = 9
    call expect(muster_event_nodes(context, event, nodes, 2_c_size_t) == 1, 'event_nodes')
    call expect(nodes(1) == 0 .and. nodes(2) == 9, 'its nodes')
    length = muster_event_describe(context, event, text, 256_c_size_t)
    call expect(length > 0 .and. muster_cut(text, length) == muster_event_text(context, event), 'event_describe')
  end subroutine

  subroutine ask_callbacks()
    type(muster_event_t) :: none(1)
    integer :: looks
    call make_news()
    do looks = 1, timeout_ms/10
      call expect(muster_dispatch(context, c_funloc(note), c_loc(marker)) >= 0, 'dispatch')
      if (called > 0 .or. failures > 0) exit
      call pause_a_while()
    end do
    call expect(called == 1, 'one call by dispatch')
    none = muster_event()
    call expect(muster_set_callback(context, c_funloc(note), c_loc(marker), MUSTER_CALLBACK_THREAD_SAFE) == MUSTER_OK, 'set')
    call expect(muster_poll_events(context, none, 1_c_size_t, 0) == MUSTER_ERR_BUSY, 'poll_events with a callback')
    call expect(muster_set_callback(context, c_null_funptr, c_null_ptr, 0) == MUSTER_OK, 'set_callback')
  end subroutine

  ! Changes the value of an attribute that this process watches.
  subroutine make_news()
    integer(c_int32_t), target, save :: value = 0
    value = value + 1
    call expect(muster_watch(context, 'news'//c_null_char) == MUSTER_OK, 'watch')
    call expect(muster_publish(context, 'news'//c_null_char, c_loc(value), c_sizeof(value)) == MUSTER_OK, 'publish')
  end subroutine

  subroutine pause_a_while()
    interface
      function usleep(us) result(answer) bind(C)
        import :: c_int
        integer(c_int), value :: us
        integer(c_int) :: answer
      end function
    end interface
    call expect(usleep(10000) == 0, 'usleep')
  end subroutine

  function word(from) result(text)
    type(c_ptr), intent(in) :: from
    character(:), allocatable :: text
    character(kind=c_char), pointer :: characters(:)
    integer :: length
    call c_f_pointer(from, characters, [64])
    do length = 0, 63
      if (characters(length + 1) == c_null_char) exit
    end do
    text = muster_cut(characters, length)
  end function

end program
